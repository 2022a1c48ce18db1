//! What a guest holds instead of a secret.
//!
//! A placeholder looks like the real thing, so that clients which check the form of a key accept
//! it, and is random per sandbox and credential, so that its appearance anywhere is no accident. It
//! opens nothing. [`Placeholders::find`] recognises it in raw text, behind percent-encoding and
//! inside base64 at any alignment, which covers `Basic` credentials and URL parameters.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use aho_corasick::AhoCorasick;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use outgate_policy::{CredentialName, CredentialSpec, Expose, Shape};

use super::CredentialError;

/// What random characters are drawn from: the letters and digits of [`Shape`].
const ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
/// Layers of percent-encoding that are looked through: a value quoted into a URL that is quoted
/// into another.
const PERCENT_LAYERS: usize = 3;
/// Base64 works on groups of three bytes, and a placeholder may start at any of them.
const ALIGNMENTS: usize = 3;
/// Patterns per placeholder: raw, and base64 at each alignment.
const FORMS: usize = 1 + ALIGNMENTS;

/// The placeholders of one sandbox.
pub struct Placeholders {
    held: Vec<Held>,
    /// Every form of every placeholder, in the order of `held`: `FORMS` patterns each.
    forms: AhoCorasick,
}

struct Held {
    credential: CredentialName,
    env: String,
    placeholder: String,
}

impl Placeholders {
    /// New placeholders for those of `specs` that a sandbox sees.
    ///
    /// # Errors
    /// [`CredentialError::Randomness`] if the system has none.
    pub fn mint<'a>(
        specs: impl IntoIterator<Item = &'a CredentialSpec>,
    ) -> Result<Self, CredentialError> {
        Self::restore(specs, BTreeMap::new())
    }

    /// As [`mint`](Self::mint), but a credential that `known` has a placeholder for keeps it: the
    /// guest of an earlier gateway still holds that. One that does not fit the policy's shape is
    /// replaced.
    ///
    /// # Errors
    /// [`CredentialError::Randomness`] if the system has none.
    pub fn restore<'a>(
        specs: impl IntoIterator<Item = &'a CredentialSpec>,
        mut known: BTreeMap<String, String>,
    ) -> Result<Self, CredentialError> {
        let mut held = Vec::new();
        for spec in specs {
            let Some(Expose { env, shape }) = &spec.expose else {
                continue;
            };
            let placeholder = match known.remove(spec.name.as_str()) {
                Some(placeholder) if fits(shape, &placeholder) => placeholder,
                _ => random(shape)?,
            };
            held.push(Held {
                credential: spec.name.clone(),
                env: env.clone(),
                placeholder,
            });
        }
        let forms = held.iter().flat_map(|held| forms(&held.placeholder));
        let forms =
            AhoCorasick::new(forms).map_err(|error| CredentialError::Table(error.to_string()))?;
        Ok(Self { held, forms })
    }

    /// The guest's environment: variable to placeholder.
    pub fn env(&self) -> BTreeMap<String, String> {
        self.held
            .iter()
            .map(|held| (held.env.clone(), held.placeholder.clone()))
            .collect()
    }

    /// Credential name to placeholder, for [`restore`](Self::restore).
    pub fn by_credential(&self) -> BTreeMap<String, String> {
        let pair = |held: &Held| (held.credential.to_string(), held.placeholder.clone());
        self.held.iter().map(pair).collect()
    }

    /// A credential whose placeholder stands somewhere in `bytes`: raw, percent-encoded, or in
    /// base64 (either alphabet), by itself or with text around it.
    pub fn find(&self, bytes: &[u8]) -> Option<&CredentialName> {
        self.find_foreign(bytes, None)
    }

    /// As [`find`](Self::find), but passing over the placeholder of `own`: text that carries the
    /// right one may carry a wrong one too.
    pub fn find_foreign(
        &self,
        bytes: &[u8],
        own: Option<&CredentialName>,
    ) -> Option<&CredentialName> {
        if self.held.is_empty() {
            return None;
        }
        let mut layer = Cow::Borrowed(bytes);
        for _ in 0..PERCENT_LAYERS {
            let found = self.find_in_layer(&layer, own);
            if found.is_some() {
                return found;
            }
            layer = Cow::Owned(percent_decode(&layer)?);
        }
        self.find_in_layer(&layer, own)
    }

    fn find_in_layer(&self, text: &[u8], own: Option<&CredentialName>) -> Option<&CredentialName> {
        // Base64 is looked for in the standard alphabet only, so the other one is turned into it.
        let standard: Vec<u8> = text.iter().map(to_standard_alphabet).collect();
        self.forms
            .find_iter(text)
            .chain(self.forms.find_iter(&standard))
            .filter_map(|found| self.held.get(found.pattern().as_usize() / FORMS))
            .map(|held| &held.credential)
            .find(|credential| Some(*credential) != own)
    }
}

/// Which credentials have a placeholder.
impl fmt::Debug for Placeholders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.held.iter().map(|held| held.credential.as_str()))
            .finish()
    }
}

/// A new placeholder of this shape.
fn random(shape: &Shape) -> Result<String, CredentialError> {
    let mut placeholder = shape.prefix().to_owned();
    let end = placeholder.len() + shape.random();
    let mut bytes = [0u8; 64];
    while placeholder.len() < end {
        aws_lc_rs::rand::fill(&mut bytes).map_err(|_| CredentialError::Randomness)?;
        // Six bits pick one of 64; the two that stand for nothing are thrown away, so that every
        // character is equally likely.
        let picked = bytes
            .iter()
            .filter_map(|byte| ALPHABET.get(usize::from(byte & 0x3f)));
        placeholder.extend(
            picked
                .take(end - placeholder.len())
                .map(|byte| char::from(*byte)),
        );
    }
    placeholder.push_str(shape.suffix());
    Ok(placeholder)
}

fn fits(shape: &Shape, placeholder: &str) -> bool {
    placeholder
        .strip_prefix(shape.prefix())
        .and_then(|rest| rest.strip_suffix(shape.suffix()))
        .is_some_and(|random| {
            random.len() == shape.random() && random.bytes().all(|byte| ALPHABET.contains(&byte))
        })
}

/// The patterns by which a placeholder is found, `FORMS` of them.
fn forms(placeholder: &str) -> impl Iterator<Item = Vec<u8>> {
    let raw = placeholder.as_bytes().to_vec();
    let encoded = (0..ALIGNMENTS).map(move |shift| base64_at(shift, &raw));
    std::iter::once(placeholder.as_bytes().to_vec()).chain(encoded)
}

/// The part of a base64 text that `bytes` alone determine when `shift` bytes stand before them:
/// whole characters of six bits each, whatever comes before and after.
fn base64_at(shift: usize, bytes: &[u8]) -> Vec<u8> {
    let shifted = [vec![0; shift], bytes.to_vec()].concat();
    let encoded = STANDARD_NO_PAD.encode(&shifted).into_bytes();
    let first = (shift * 8).div_ceil(6);
    let determined = shifted.len() * 8 / 6 - first;
    encoded.into_iter().skip(first).take(determined).collect()
}

fn to_standard_alphabet(byte: &u8) -> u8 {
    match byte {
        b'-' => b'+',
        b'_' => b'/',
        other => *other,
    }
}

/// `text` with one layer of percent-encoding taken off; `None` if it has none.
fn percent_decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    let mut found = false;
    while let Some((&byte, tail)) = rest.split_first() {
        let escaped = match (byte, tail) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)),
            _ => None,
        };
        if let Some((high, low)) = escaped {
            decoded.push(high << 4 | low);
            rest = &tail[2..];
            found = true;
        } else {
            decoded.push(byte);
            rest = tail;
        }
    }
    found.then_some(decoded)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::super::test_policy::{spec, specs};
    use super::*;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use proptest::prelude::*;

    fn placeholders() -> Placeholders {
        Placeholders::mint(&specs()).unwrap()
    }

    #[test]
    fn a_placeholder_has_the_shape_of_the_policy_and_is_never_the_same() {
        let (one, other) = (placeholders(), placeholders());
        let env = one.env();
        assert_eq!(
            env.keys().collect::<Vec<_>>(),
            ["GITHUB_TOKEN", "MODEL_KEY"]
        );
        let token = &env["GITHUB_TOKEN"];
        assert!(token.starts_with("ghp_") && token.len() == 40, "{token}");
        assert_ne!(one.env(), other.env());
    }

    #[test]
    fn a_restored_sandbox_keeps_what_its_guest_holds_unless_it_does_not_fit() {
        let first = placeholders();
        let restored = Placeholders::restore(&specs(), first.by_credential()).unwrap();
        assert_eq!(restored.env(), first.env());

        let mut forged = first.by_credential();
        forged.insert("github".into(), "x".into());
        let restored = Placeholders::restore(&specs(), forged).unwrap();
        assert_ne!(restored.env()["GITHUB_TOKEN"], "x");
        assert_eq!(restored.env()["MODEL_KEY"], first.env()["MODEL_KEY"]);
    }

    #[test]
    fn c13_a_placeholder_is_found_in_every_dress() {
        let placeholders = placeholders();
        for (variable, credential) in [("GITHUB_TOKEN", "github"), ("MODEL_KEY", "model")] {
            let token = placeholders.env()[variable].clone();
            let quoted: String = token.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let twice = quoted.replace('%', "%25");
            for text in [
                token.clone(),
                format!("Bearer {token}"),
                format!("/x?key={token}&y"),
                token.replacen('_', "%5F", 1),
                quoted,
                twice,
                STANDARD.encode(format!("user:{token}")),
                STANDARD.encode(format!("{token}:x")),
                STANDARD
                    .encode(format!("us:{token}"))
                    .replace('+', "%2B")
                    .replace('/', "%2f"),
            ] {
                let found = placeholders
                    .find(text.as_bytes())
                    .map(CredentialName::as_str);
                assert_eq!(found, Some(credential), "{text}");
            }
        }
        assert_eq!(placeholders.find(b"Bearer ghp_of_somebody_else"), None);
    }

    #[test]
    fn b141_a_foreign_placeholder_beside_the_right_one_is_found() {
        let placeholders = placeholders();
        let env = placeholders.env();
        let text = format!("{} {}", env["GITHUB_TOKEN"], env["MODEL_KEY"]);
        let own = &spec("github").name;
        let found = placeholders.find_foreign(text.as_bytes(), Some(own));
        assert_eq!(found.map(CredentialName::as_str), Some("model"));
        let alone = env["GITHUB_TOKEN"].as_bytes();
        assert_eq!(placeholders.find_foreign(alone, Some(own)), None);
    }

    proptest! {
        #[test]
        fn base64_hides_nothing(before: Vec<u8>, after: Vec<u8>) {
            let placeholders = placeholders();
            let token = placeholders.env()["MODEL_KEY"].clone().into_bytes();
            let text = [before, token, after].concat();
            prop_assert!(placeholders.find(STANDARD.encode(&text).as_bytes()).is_some());
            prop_assert!(placeholders.find(URL_SAFE_NO_PAD.encode(&text).as_bytes()).is_some());
        }

        #[test]
        fn arbitrary_bytes_hold_no_placeholder(bytes: Vec<u8>) {
            let placeholders = placeholders();
            prop_assert_eq!(placeholders.find(&bytes), None);
        }
    }
}
