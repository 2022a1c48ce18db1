//! What a path glob is made of, and how it is walked along a path.

use super::ByteSet;

/// One element within a segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Token {
    /// This byte.
    Byte(u8),
    /// `?`: any one byte but a slash.
    Any,
    /// `[a-z]`: one byte of the set, which has no slash.
    Class(Box<ByteSet>),
    /// `*`: any bytes but slashes, or none.
    Star,
}

impl Token {
    /// What is left of the segment behind one byte that this token takes. A star takes none here.
    fn take<'t>(&self, text: &'t [u8]) -> Option<&'t [u8]> {
        let (first, rest) = text.split_first()?;
        let takes = match self {
            Self::Byte(byte) => byte == first,
            Self::Any => true,
            Self::Class(set) => set.contains(*first),
            Self::Star => false,
        };
        takes.then_some(rest)
    }
}

/// What stands between two slashes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Segment {
    /// Exactly these bytes.
    Literal(Box<[u8]>),
    /// Something with `*`, `?` or a class in it.
    Pattern(Box<[Token]>),
    /// `**`: any number of whole segments; at the end of the glob at least one, which may be empty.
    AnyDepth,
}

impl Segment {
    /// Elements, and one for the segment itself.
    pub(super) fn cost(&self) -> usize {
        1 + match self {
            Self::Literal(bytes) => bytes.len(),
            Self::Pattern(tokens) => tokens.len(),
            Self::AnyDepth => 0,
        }
    }
}

impl Segment {
    /// Whether this stands for the segment. `**` stands for any.
    fn matches(&self, segment: &[u8]) -> bool {
        match self {
            Self::Literal(text) => **text == *segment,
            Self::Pattern(tokens) => wildcard(tokens, segment, Token::take),
            Self::AnyDepth => true,
        }
    }
}

/// Whether the segments stand for the whole path, which comes without its leading slash.
///
/// One way back is enough, to the last `**`: what the later one can take, an earlier one need not.
pub(super) fn matches(segments: &[Segment], path: &[u8]) -> bool {
    let mut wanted = segments;
    // `None` is behind the last segment; some empty rest is an empty segment.
    let mut rest = Some(path);
    let mut retry = None;
    loop {
        match (wanted, rest) {
            ([], None) | ([Segment::AnyDepth], Some(_)) => return true,
            ([Segment::AnyDepth, after @ ..], Some(path)) => {
                retry = Some((after, path));
                wanted = after;
                continue;
            }
            ([first, after @ ..], Some(path)) => {
                let (segment, behind) = split(path);
                if first.matches(segment) {
                    wanted = after;
                    rest = behind;
                    continue;
                }
            }
            // Every segment that is still wanted takes one of the path; going back leaves fewer.
            (_, None) => return false,
            ([], Some(_)) => {}
        }
        let Some((after, path)) = retry else {
            return false;
        };
        let Some(next) = split(path).1 else {
            return false;
        };
        retry = Some((after, next));
        wanted = after;
        rest = Some(next);
    }
}

/// The first segment, and what is behind its slash if it has one.
fn split(path: &[u8]) -> (&[u8], Option<&[u8]>) {
    match path.iter().position(|byte| *byte == b'/') {
        Some(at) => {
            let (segment, rest) = path.split_at_checked(at).unwrap_or((path, &[]));
            (segment, rest.get(1..))
        }
        None => (path, None),
    }
}

/// Whether the tokens stand for the whole text; `take` is what one token other than a star takes
/// from the front. As with [`matches`], one way back is enough.
pub(super) fn wildcard<'t>(
    tokens: &[Token],
    text: &'t [u8],
    take: impl Fn(&Token, &'t [u8]) -> Option<&'t [u8]>,
) -> bool {
    let mut wanted = tokens;
    let mut rest = text;
    let mut retry: Option<(&[Token], &[u8])> = None;
    loop {
        match wanted {
            [] if rest.is_empty() => return true,
            [Token::Star] => return true,
            [Token::Star, after @ ..] => {
                retry = Some((after, rest));
                wanted = after;
                continue;
            }
            [first, after @ ..] => {
                if let Some(behind) = take(first, rest) {
                    wanted = after;
                    rest = behind;
                    continue;
                }
            }
            [] => {}
        }
        let Some((after, [_, next @ ..])) = retry else {
            return false;
        };
        retry = Some((after, next));
        wanted = after;
        rest = next;
    }
}
