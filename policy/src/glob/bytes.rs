//! A set of bytes, as a character class of a glob is one.

/// One bit for each of the 256 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ByteSet([u64; 4]);

impl ByteSet {
    /// The set of the bytes for which this holds.
    pub(crate) fn of(holds: impl Fn(u8) -> bool) -> Self {
        let mut set = Self::default();
        for byte in 0..=u8::MAX {
            if holds(byte) {
                set.insert(byte);
            }
        }
        set
    }

    /// The set of one byte.
    pub(crate) fn of_one(byte: u8) -> Self {
        let mut set = Self::default();
        set.insert(byte);
        set
    }

    /// The byte of a set of one.
    pub(crate) fn only(&self) -> Option<u8> {
        let mut zeros = 0;
        let mut found = None;
        for word in self.0 {
            match (word.count_ones(), found) {
                (0, _) => {}
                (1, None) => found = u8::try_from(zeros + word.trailing_zeros()).ok(),
                _ => return None,
            }
            zeros += 64;
        }
        found
    }

    pub(crate) fn insert(&mut self, byte: u8) {
        let [first, second, third, fourth] = &mut self.0;
        let word = match byte >> 6 {
            0 => first,
            1 => second,
            2 => third,
            _ => fourth,
        };
        *word |= 1 << (byte & 63);
    }

    pub(crate) fn contains(&self, byte: u8) -> bool {
        let [first, second, third, fourth] = self.0;
        let word = match byte >> 6 {
            0 => first,
            1 => second,
            2 => third,
            _ => fourth,
        };
        word >> (byte & 63) & 1 == 1
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = u8> {
        (0..=u8::MAX).filter(move |byte| self.contains(*byte))
    }
}
