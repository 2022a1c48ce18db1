//! Header fields as rules see them: names in lower case, values as received, in order.

/// The fields of one request.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Headers(Vec<(String, Vec<u8>)>);

impl Headers {
    pub(super) fn new<'a>(fields: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let fields = fields.into_iter();
        Self(
            fields
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec()))
                .collect(),
        )
    }

    /// The values of the fields with this lower-case name.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.0
            .iter()
            .filter(move |(known, _)| known == name)
            .map(|(_, value)| value.as_slice())
    }
}
