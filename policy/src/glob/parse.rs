//! From the text of a path glob to its alternatives: lists of segments without any braces.
//!
//! Braces are multiplied out here, on elements and not on text: `a{,*}*` has no `**` in it.

use super::{ByteSet, Segment, Token};

/// Alternatives that the braces of one pattern may stand for.
pub(super) const MAX_ALTERNATIVES: usize = 256;
/// Elements (bytes, wildcards, slashes) of all alternatives together.
const MAX_ELEMENTS: usize = 8 * 1024;
/// How deep braces may be nested; reading them recurses.
const MAX_DEPTH: usize = 100;

/// What is wrong with the syntax.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Flaw {
    #[error("a `[` is not closed by `]`")]
    OpenClass,
    #[error("the range `{0}-{1}` ends before it begins")]
    Range(char, char),
    #[error("`[:{0}:]` is no named class; write its ranges, as in `[a-z]`")]
    NamedClass(String),
    #[error("a class can't have the character `{0}`, which is several bytes")]
    WideClass(char),
    #[error("a `{{` is not closed by `}}`")]
    OpenBrace,
    #[error("a `}}` closes no `{{`")]
    StrayBrace,
    #[error("its braces are nested more than {MAX_DEPTH} deep")]
    Depth,
    #[error("its braces stand for more than {MAX_ALTERNATIVES} patterns or {MAX_ELEMENTS} bytes")]
    Explodes,
    /// `**` is a whole segment. Within braces it may only end the pattern, as in `/x{,/**}`.
    #[error("`**` is not a whole segment")]
    Stars,
}

/// One element of a pattern in the order of the text.
#[derive(Clone, Debug)]
enum Element {
    Slash,
    AnyDepth,
    Token(Token),
}

/// Reads a pattern. What a rooted one matches begins with a slash, which is no segment of its own.
pub(super) fn alternatives(text: &str, rooted: bool) -> Result<Box<[Box<[Segment]>]>, Flaw> {
    let mut parser = Parser {
        text,
        at: 0,
        depth: 0,
    };
    let mut alternatives: Vec<Box<[Segment]>> = Vec::new();
    for elements in parser.sequence()? {
        let alternative = segments(&elements, rooted);
        if !alternatives.contains(&alternative) {
            alternatives.push(alternative);
        }
    }
    Ok(alternatives.into())
}

/// Cuts elements at the slashes.
fn segments(elements: &[Element], rooted: bool) -> Box<[Segment]> {
    let elements = match elements {
        [Element::Slash, rest @ ..] if rooted => rest,
        all => all,
    };
    let mut segments = Vec::new();
    for piece in elements.split(|element| matches!(element, Element::Slash)) {
        let segment = segment(piece);
        if segment != Segment::AnyDepth || segments.last() != Some(&Segment::AnyDepth) {
            segments.push(segment);
        }
    }
    segments.into()
}

fn segment(elements: &[Element]) -> Segment {
    if matches!(elements, [Element::AnyDepth]) {
        return Segment::AnyDepth;
    }
    let mut tokens: Vec<Token> = Vec::with_capacity(elements.len());
    for element in elements {
        let token = match element {
            Element::Token(token) => token.clone(),
            Element::Slash | Element::AnyDepth => Token::Star,
        };
        if token != Token::Star || tokens.last() != Some(&Token::Star) {
            tokens.push(token);
        }
    }
    let literal = tokens.iter().map(|token| match token {
        Token::Byte(byte) => Some(*byte),
        Token::Any | Token::Class(_) | Token::Star => None,
    });
    match literal.collect::<Option<Box<[u8]>>>() {
        Some(bytes) => Segment::Literal(bytes),
        None => Segment::Pattern(tokens.into()),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &[u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<u8> {
        self.rest().first().copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    /// Reads to the end or, within braces, to the `,` or `}` that ends the choice.
    fn sequence(&mut self) -> Result<Vec<Vec<Element>>, Flaw> {
        let mut ways = vec![Vec::new()];
        while let Some(byte) = self.peek() {
            match byte {
                b',' | b'}' if self.depth > 0 => break,
                b'}' => return Err(Flaw::StrayBrace),
                b'{' => {
                    self.at += 1;
                    ways = multiply(&ways, &self.group()?)?;
                }
                _ => {
                    let element = self.element()?;
                    for way in &mut ways {
                        way.push(element.clone());
                    }
                    check_size(&ways)?;
                }
            }
        }
        Ok(ways)
    }

    /// The choices up to the closing brace.
    fn group(&mut self) -> Result<Vec<Vec<Element>>, Flaw> {
        if self.depth == MAX_DEPTH {
            return Err(Flaw::Depth);
        }
        self.depth += 1;
        let mut choices = self.sequence()?;
        loop {
            match self.next() {
                Some(b'}') => break,
                Some(_) => choices.extend(self.sequence()?),
                None => return Err(Flaw::OpenBrace),
            }
            check_size(&choices)?;
        }
        self.depth -= 1;
        Ok(choices)
    }

    fn element(&mut self) -> Result<Element, Flaw> {
        let token = match self.next() {
            Some(b'/') => return Ok(Element::Slash),
            Some(b'*') if self.peek() == Some(b'*') => {
                self.at += 1;
                self.check_stars()?;
                return Ok(Element::AnyDepth);
            }
            Some(b'*') | None => Token::Star,
            Some(b'?') => Token::Any,
            Some(b'[') => self.class()?,
            Some(byte) => Token::Byte(byte),
        };
        Ok(Element::Token(token))
    }

    /// Behind the second star.
    fn check_stars(&self) -> Result<(), Flaw> {
        let before = self.text.as_bytes().get(..self.at.saturating_sub(2));
        let begins = before.is_none_or(|before| before.is_empty() || before.ends_with(b"/"));
        let rest = self.rest();
        let ends = if self.depth == 0 {
            matches!(rest, [] | [b'/', ..])
        } else {
            let mut behind = rest.iter().skip_while(|byte| **byte != b'}');
            matches!(rest, [b',' | b'}', ..]) && behind.all(|byte| *byte == b'}')
        };
        if begins && ends {
            Ok(())
        } else {
            Err(Flaw::Stars)
        }
    }

    /// Behind the `[`. A `]` in front, and a `-` at either end, stand for themselves.
    fn class(&mut self) -> Result<Token, Flaw> {
        let negated = matches!(self.peek(), Some(b'!' | b'^'));
        self.at += usize::from(negated);
        let mut ranges: Vec<(u8, u8)> = Vec::new();
        let mut in_range = false;
        loop {
            let byte = self.next().ok_or(Flaw::OpenClass)?;
            match byte {
                b']' if !ranges.is_empty() => break,
                b'-' if !ranges.is_empty() && !in_range => in_range = true,
                b'[' if !in_range && self.peek() == Some(b':') => match self.name() {
                    Some(name) => ranges.extend(named(&name).ok_or(Flaw::NamedClass(name))?),
                    None => ranges.push((byte, byte)),
                },
                0x80.. => return Err(Flaw::WideClass(self.wide())),
                _ => match ranges.last_mut().filter(|_| in_range) {
                    Some((start, _)) if *start > byte => {
                        return Err(Flaw::Range(char::from(*start), char::from(byte)));
                    }
                    Some((_, end)) => {
                        *end = byte;
                        in_range = false;
                    }
                    None => ranges.push((byte, byte)),
                },
            }
        }
        if in_range {
            ranges.push((b'-', b'-'));
        }
        let inside = |byte| {
            ranges
                .iter()
                .any(|(start, end)| (*start..=*end).contains(&byte))
        };
        let set = ByteSet::of(|byte| byte != b'/' && inside(byte) != negated);
        let mut members = set.iter();
        Ok(match (members.next(), members.next()) {
            (Some(only), None) => Token::Byte(only),
            _ => Token::Class(Box::new(set)),
        })
    }

    /// The name in `[:name:]`, with the first bracket behind us; else nothing is taken.
    fn name(&mut self) -> Option<String> {
        let text = self.text.get(self.at..)?.strip_prefix(':')?;
        let (name, _) = text.split_once(":]")?;
        let named = name.len() <= 8 && name.bytes().all(|byte| byte.is_ascii_lowercase());
        if !named {
            return None;
        }
        self.at += name.len() + 3;
        Some(name.to_owned())
    }

    /// The character whose first byte is behind us.
    fn wide(&self) -> char {
        let rest = self.at.checked_sub(1).and_then(|at| self.text.get(at..));
        rest.and_then(|rest| rest.chars().next())
            .unwrap_or(char::REPLACEMENT_CHARACTER)
    }
}

/// POSIX's names for ASCII ranges.
fn named(name: &str) -> Option<&'static [(u8, u8)]> {
    Some(match name {
        "alnum" => &[(b'0', b'9'), (b'A', b'Z'), (b'a', b'z')],
        "alpha" => &[(b'A', b'Z'), (b'a', b'z')],
        "blank" => &[(b'\t', b'\t'), (b' ', b' ')],
        "cntrl" => &[(0, 0x1f), (0x7f, 0x7f)],
        "digit" => &[(b'0', b'9')],
        "graph" => &[(b'!', b'~')],
        "lower" => &[(b'a', b'z')],
        "print" => &[(b' ', b'~')],
        "punct" => &[(b'!', b'/'), (b':', b'@'), (b'[', b'`'), (b'{', b'~')],
        "space" => &[(b'\t', b'\r'), (b' ', b' ')],
        "upper" => &[(b'A', b'Z')],
        "xdigit" => &[(b'0', b'9'), (b'A', b'F'), (b'a', b'f')],
        _ => return None,
    })
}

/// Every way followed by every choice.
fn multiply(ways: &[Vec<Element>], choices: &[Vec<Element>]) -> Result<Vec<Vec<Element>>, Flaw> {
    if ways.len().saturating_mul(choices.len()) > MAX_ALTERNATIVES {
        return Err(Flaw::Explodes);
    }
    let both = |way: &Vec<Element>, choice: &Vec<Element>| [way.as_slice(), choice].concat();
    let product: Vec<Vec<Element>> = ways
        .iter()
        .flat_map(|way| choices.iter().map(move |choice| both(way, choice)))
        .collect();
    check_size(&product)?;
    Ok(product)
}

fn check_size(ways: &[Vec<Element>]) -> Result<(), Flaw> {
    let elements: usize = ways.iter().map(Vec::len).sum();
    if ways.len() > MAX_ALTERNATIVES || elements > MAX_ELEMENTS {
        return Err(Flaw::Explodes);
    }
    Ok(())
}
