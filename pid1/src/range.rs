//! The `Range` of a request: one range of bytes (RFC 9110, section 14.1.2).

/// Which bytes of a file are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Range {
    /// From an offset on, up to another, inclusive.
    From(u64, Option<u64>),
    /// So many at the end.
    Last(u64),
}

impl Range {
    /// `bytes=START-[END]` or `bytes=-COUNT`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| digits)
        };
        match text.strip_prefix("bytes=")?.split_once('-')? {
            ("", count) => Some(Self::Last(number(count)?)),
            (start, "") => Some(Self::From(number(start)?, None)),
            (start, end) => {
                let (start, end) = (number(start)?, number(end)?);
                (start <= end).then_some(Self::From(start, Some(end)))
            }
        }
    }

    /// Offset and length in a file of `size` bytes; none when no byte of it is in the range.
    pub(crate) fn of(self, size: u64) -> Option<(u64, u64)> {
        let (start, end) = match self {
            Self::From(start, end) => (start, end.map_or(size, |end| end.saturating_add(1))),
            Self::Last(count) => (size.saturating_sub(count), size),
        };
        let length = end.min(size).checked_sub(start)?;
        (length > 0).then_some((start, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_to_the_file() {
        let of = |text: &str| Range::parse(text).unwrap().of(100);
        assert_eq!(of("bytes=0-9"), Some((0, 10)));
        assert_eq!(of("bytes=90-"), Some((90, 10)));
        assert_eq!(of("bytes=90-500"), Some((90, 10)));
        assert_eq!(of("bytes=-10"), Some((90, 10)));
        assert_eq!(of("bytes=-500"), Some((0, 100)));
        for outside in ["bytes=100-", "bytes=-0", "bytes=18446744073709551615-"] {
            assert_eq!(of(outside), None, "{outside}");
        }
        assert_eq!(Range::Last(10).of(0), None);
        assert_eq!(Range::From(0, Some(u64::MAX)).of(100), Some((0, 100)));
    }

    #[test]
    fn what_is_no_single_range_is_none() {
        for text in [
            "",
            "bytes=",
            "bytes=-",
            "bytes=9-5",
            "bytes=0-1,3-4",
            "lines=0-1",
            "bytes=+1-2",
        ] {
            assert_eq!(Range::parse(text), None, "{text}");
        }
    }
}
