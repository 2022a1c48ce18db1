//! Amounts as people write them: times, bytes, rates, counts and money.

use std::time::Duration;

use super::fields::Findings;
use super::spec::{At, RateSpec};
use super::yaml::{Kind, Node};

const SECOND: u64 = 1;
const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Longest time: a year and a day, so that no sum overflows.
const MAX_SECONDS: u64 = 366 * DAY;

/// A time such as `180s`, `5m`, `24h` or `7d`; longer than nothing.
pub(super) fn duration(node: &Node, found: &mut Findings) -> Option<At<Duration>> {
    const UNITS: [(&str, u64); 4] = [("s", SECOND), ("m", MINUTE), ("h", HOUR), ("d", DAY)];
    let read = |text: &str| {
        let (number, unit) = split_number(text)?;
        let (_, seconds) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let total = number.checked_mul(*seconds)?;
        (1..=MAX_SECONDS).contains(&total).then_some(total)
    };
    amount(
        node,
        found,
        "a time",
        "write a whole number and `s`, `m`, `h` or `d`, as in `180s` or `24h`; at most 366d",
        |text| read(text).map(Duration::from_secs),
    )
}

/// Bytes such as `512`, `64KiB`, `2GiB` or `10MB`.
pub(super) fn size(node: &Node, found: &mut Findings) -> Option<At<u64>> {
    const UNITS: [(&str, u64); 10] = [
        ("", 1),
        ("B", 1),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
    ];
    let read = |text: &str| {
        let (number, unit) = split_number(text)?;
        let (_, bytes) = UNITS.iter().find(|(name, _)| *name == unit)?;
        number.checked_mul(*bytes).filter(|total| *total <= 1 << 60)
    };
    amount(
        node,
        found,
        "a number of bytes",
        "write a whole number, alone or with `KiB`, `MiB`, `GiB`, `TiB`, `KB`, `MB`, `GB` or `TB`, as in `2GiB`",
        read,
    )
}

/// `100/min`: so many in a time.
pub(super) fn rate(node: &Node, found: &mut Findings) -> Option<At<RateSpec>> {
    const UNITS: [(&str, u64); 4] = [("s", SECOND), ("min", MINUTE), ("h", HOUR), ("day", DAY)];
    let read = |text: &str| {
        let (count, unit) = text.split_once('/')?;
        let (count, rest) = split_number(count)?;
        let (_, seconds) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let good = rest.is_empty() && (1..=1_000_000_000).contains(&count);
        good.then_some(RateSpec {
            count,
            per: Duration::from_secs(*seconds),
        })
    };
    amount(
        node,
        found,
        "a rate",
        "write a whole number from 1, `/` and `s`, `min`, `h` or `day`, as in `100/min`",
        read,
    )
}

/// A whole number from 1.
pub(super) fn count(node: &Node, found: &mut Findings) -> Option<At<u64>> {
    let read = |text: &str| {
        let (number, rest) = split_number(text)?;
        (rest.is_empty() && number > 0).then_some(number)
    };
    amount(
        node,
        found,
        "a whole number from 1",
        "write digits only, without quotes",
        read,
    )
}

/// US dollars in millionths.
pub(super) fn usd(node: &Node, found: &mut Findings) -> Option<At<u64>> {
    const DECIMALS: usize = 6;
    let read = |text: &str| {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(part) || part.len() > DECIMALS || whole.len() > 9 {
            return None;
        }
        let millionths: u64 = format!("{part:0<DECIMALS$}").parse().ok()?;
        let total = whole.parse::<u64>().ok()? * 1_000_000 + millionths;
        (total > 0).then_some(total)
    };
    amount(
        node,
        found,
        "an amount of US dollars",
        "write a number above 0 with at most six decimals, without a sign or currency, as in `25` or `0.50`",
        read,
    )
}

/// Digits and what follows them; no sign, no leading zero that somebody could read as octal.
fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, rest) = text.split_at_checked(end)?;
    if number.len() > 1 && number.starts_with('0') {
        return None;
    }
    Some((number.parse().ok()?, rest))
}

fn amount<T>(
    node: &Node,
    found: &mut Findings,
    what: &str,
    help: &str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Option<At<T>> {
    if let Kind::Scalar { text, plain: true } = &node.kind
        && let Some(value) = read(text)
    {
        return Some(At {
            value,
            span: node.span.clone(),
        });
    }
    found.wrong_type(node, what, Some(help.to_owned()));
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Source;
    use crate::document::Style;

    fn scalar(text: &str) -> (Node, Findings) {
        let kind = Kind::Scalar {
            text: text.to_owned(),
            plain: true,
        };
        let source = Arc::new(Source::new("p.yaml", text));
        (
            Node {
                span: 0..text.len(),
                style: Style::Plain,
                kind,
            },
            Findings::new(source),
        )
    }

    fn read<T>(text: &str, with: impl Fn(&Node, &mut Findings) -> Option<At<T>>) -> Option<T> {
        let (node, mut found) = scalar(text);
        let value = with(&node, &mut found).map(|at| at.value);
        assert_eq!(value.is_none(), found.count() == 1, "{text}");
        value
    }

    #[test]
    fn amounts_have_one_reading_or_none() {
        assert_eq!(read("180s", duration), Some(Duration::from_secs(180)));
        assert_eq!(read("24h", duration), Some(Duration::from_secs(86_400)));
        for text in [
            "",
            "0s",
            "10",
            "-1s",
            "1.5h",
            "1w",
            "01h",
            "367d",
            "99999999999999999999s",
        ] {
            assert_eq!(read(text, duration), None, "{text}");
        }
        assert_eq!(read("2GiB", size), Some(2 << 30));
        assert_eq!(read("10MB", size), Some(10_000_000));
        assert_eq!(read("0", size), Some(0));
        for text in [
            "2 GiB",
            "2gib",
            "2G",
            "0x10",
            "1e3",
            "18446744073709551615TiB",
            "_1",
        ] {
            assert_eq!(read(text, size), None, "{text}");
        }
        let minute = RateSpec {
            count: 100,
            per: Duration::from_secs(60),
        };
        assert_eq!(read("100/min", rate), Some(minute));
        for text in [
            "100",
            "0/s",
            "100/",
            "/min",
            "100/minute",
            "1.5/s",
            "100 /s",
            "1/2/s",
        ] {
            assert_eq!(read(text, rate), None, "{text}");
        }
        assert_eq!(read("25", usd), Some(25_000_000));
        assert_eq!(read("0.5", usd), Some(500_000));
        for text in ["0", "0.0000001", "-1", "$5", "1,000", "1.", ".5", "1e2"] {
            assert_eq!(read(text, usd), None, "{text}");
        }
        assert_eq!(read("1", count), Some(1));
        for text in ["0", "1.0", "+1", "1k"] {
            assert_eq!(read(text, count), None, "{text}");
        }
    }
}
