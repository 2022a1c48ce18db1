//! Rows of bits.

/// Bits in words, the lowest first.
pub(super) type Bits = Box<[u64]>;

pub(super) fn row(words: usize) -> Bits {
    vec![0; words].into()
}

pub(super) fn set(bits: &mut [u64], at: usize) {
    if let Some(word) = bits.get_mut(at / 64) {
        *word |= 1 << (at % 64);
    }
}

pub(super) fn clear(bits: &mut [u64], range: std::ops::Range<usize>) {
    let words = range.start / 64..range.end.div_ceil(64);
    for (word, at) in bits.iter_mut().zip(0..).skip(words.start).take(words.len()) {
        let from: usize = at * 64;
        let low = range.start.saturating_sub(from).min(64);
        let high = range.end.saturating_sub(from).min(64);
        // The bits below `high` without those below `low`.
        *word &= !(below(high) & !below(low));
    }
}

fn below(bit: usize) -> u64 {
    match u32::try_from(bit) {
        Ok(bit) => 1_u64.checked_shl(bit).map_or(u64::MAX, |bit| bit - 1),
        Err(_) => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_set_and_cleared_by_range() {
        let mut bits = row(3);
        for at in [0, 1, 63, 64, 100, 127, 128, 191] {
            set(&mut bits, at);
        }
        let left = |bits: &[u64]| -> Vec<usize> {
            (0..192)
                .filter(|at| bits[at / 64] >> (at % 64) & 1 == 1)
                .collect()
        };
        clear(&mut bits, 1..1);
        assert_eq!(left(&bits), [0, 1, 63, 64, 100, 127, 128, 191]);
        clear(&mut bits, 1..101);
        assert_eq!(left(&bits), [0, 127, 128, 191]);
        clear(&mut bits, 128..192);
        assert_eq!(left(&bits), [0, 127]);
        clear(&mut bits, 0..192);
        assert_eq!(left(&bits), [] as [usize; 0]);
    }
}
