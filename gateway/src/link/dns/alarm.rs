//! Notices names that look like data on its way out.
//!
//! Nothing is refused here: the alarm is one audit record for a person to look into. Names are
//! counted by registrable domain (`example.co.uk`; one customer's name under a shared suffix is a
//! domain of its own), each name once, over [`WINDOW`]. The alarm is raised by [`ODD_NAMES`] names
//! that hold an encoded-looking label, or by [`VOLUME`] bytes of names whatever they look like. One
//! bucket, one content hash, a video site's edge servers or a cluster's endpoint are far below both.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;

use hickory_proto::rr::Name;
use lru::LruCache;
use tokio::time::{Duration, Instant};

use super::super::NameAlarm;
use super::zone;

/// How long names are added up.
const WINDOW: Duration = Duration::from_secs(600);
/// Distinct names with an encoded-looking label that raise the alarm: one or two are a build's
/// content hashes.
const ODD_NAMES: u32 = 8;
/// Bytes of distinct names below one domain that raise the alarm: 200 names of 20 characters.
const VOLUME: usize = 4096;
/// Characters of an encoded-looking run. The identifiers of cloud services are mostly shorter.
const RUN: usize = 24;
/// Bits per character that such a run has at least: random hex has nearly 4, `aaaa1111` has 1.
const ENTROPY: f64 = 3.0;
/// Domains that are watched at a time, and names known to be counted. Beyond that the ones not
/// asked for longest are forgotten.
const DOMAINS: NonZeroUsize = NonZeroUsize::new(64).unwrap();
const NAMES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// What one sandbox has asked for lately.
#[derive(Debug)]
pub(super) struct Alarm {
    hasher: RandomState,
    /// Hashes of names that were counted, so that memory does not depend on their length.
    counted: LruCache<u64, Instant>,
    domains: LruCache<String, Seen>,
}

#[derive(Debug)]
struct Seen {
    since: Instant,
    names: u64,
    bytes: usize,
    odd: u32,
    raised: bool,
}

impl Default for Alarm {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            counted: LruCache::new(NAMES),
            domains: LruCache::new(DOMAINS),
        }
    }
}

impl Alarm {
    /// Counts a name. Says if it is the one that raises the alarm: once per domain and window.
    pub(super) fn observe(&mut self, name: &Name, now: Instant) -> Option<NameAlarm> {
        let text = zone::text(name).to_ascii_lowercase();
        let domain = psl::domain_str(&text)?;
        let below = text.strip_suffix(domain)?.strip_suffix('.')?;
        let known = self.counted.put(self.hasher.hash_one(&text), now);
        if known.is_some_and(|at| now.duration_since(at) < WINDOW) {
            return None;
        }
        let seen = self
            .domains
            .get_or_insert_mut(domain.to_owned(), || Seen::new(now));
        if now.duration_since(seen.since) >= WINDOW {
            *seen = Seen::new(now);
        }
        seen.names += 1;
        seen.bytes += below.len();
        seen.odd += u32::from(below.split('.').any(is_odd));
        let is_over = seen.odd >= ODD_NAMES || seen.bytes >= VOLUME;
        if !is_over || seen.raised {
            return None;
        }
        seen.raised = true;
        Some(NameAlarm {
            domain: domain.to_owned(),
            names: seen.names,
            bytes: seen.bytes,
        })
    }
}

impl Seen {
    fn new(since: Instant) -> Self {
        Self {
            since,
            names: 0,
            bytes: 0,
            odd: 0,
            raised: false,
        }
    }
}

/// Whether a label holds a long run of letters and digits that alternate as they do in hex, base32
/// and base36, and hardly in what people name things.
fn is_odd(label: &str) -> bool {
    label
        .split(|c: char| !c.is_ascii_alphanumeric())
        .any(|run| run.len() >= RUN && changes(run) * 8 >= run.len() && entropy(run) >= ENTROPY)
}

/// How often a letter follows a digit or the other way round.
fn changes(run: &str) -> usize {
    let bytes = run.as_bytes();
    let pairs = bytes.iter().zip(bytes.iter().skip(1));
    pairs
        .filter(|(one, next)| one.is_ascii_digit() != next.is_ascii_digit())
        .count()
}

/// Shannon entropy in bits per character.
fn entropy(run: &str) -> f64 {
    let mut counts = [0_u32; 256];
    for byte in run.bytes() {
        counts[usize::from(byte)] += 1;
    }
    // A label has at most 63 bytes, escaped four times as many.
    let total = u32::try_from(run.len()).map_or(f64::MAX, f64::from);
    let share = |count: &u32| f64::from(*count) / total;
    counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| -share(count) * share(count).log2())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raised<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Option<NameAlarm> {
        let mut alarm = Alarm::default();
        let now = Instant::now();
        names
            .into_iter()
            .find_map(|name| alarm.observe(&Name::from_ascii(name.as_ref()).unwrap(), now))
    }

    /// What an encoder of `data` would put into a label.
    fn base32(data: u64) -> String {
        let alphabet = b"abcdefghijklmnopqrstuvwxyz234567";
        let mut state = data.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..40)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                char::from(alphabet[(state % 32) as usize])
            })
            .collect()
    }

    #[test]
    fn c12_encoded_labels_under_one_domain_raise_the_alarm_once() {
        let hex = |n: u32| {
            format!(
                "{:032x}{n:08x}.t.evil.test.",
                u128::from(n) << 64 | 0xfeed_face_0dd0_beef_1234_5678
            )
        };
        let names: Vec<_> = (0..20)
            .map(|n| format!("{}.{}.evil.test.", base32(n), base32(n + 99)))
            .collect();
        let first = raised(&names).expect("base32");
        assert_eq!((first.domain.as_str(), first.names), ("evil.test", 8));
        assert!(raised((0..20).map(hex)).is_some(), "hex");
        let mut alarm = Alarm::default();
        let now = Instant::now();
        let count = |alarm: &mut Alarm, now| {
            let names = names.iter().map(|name| Name::from_ascii(name).unwrap());
            names.filter_map(|name| alarm.observe(&name, now)).count()
        };
        assert_eq!(count(&mut alarm, now), 1);
        assert_eq!(count(&mut alarm, now + WINDOW / 2), 0, "counted already");
        assert_eq!(
            count(&mut alarm, now + 2 * WINDOW),
            1,
            "and again in the next window"
        );
    }

    #[test]
    fn c12_words_do_too_if_there_are_enough_of_them() {
        let words = (0..1000).map(|n| format!("the-quick-brown-fox-{n}.c.test."));
        let alarm = raised(words).unwrap();
        assert!(alarm.bytes >= VOLUME && alarm.names < 250, "{alarm:?}");
    }

    #[test]
    fn names_of_everyday_services_do_not() {
        let names = [
            "d111111abcdef8.cloudfront.net.",
            "d3ag4hukkh62yn.cloudfront.net.",
            "r3---sn-4g5edn7s.googlevideo.com.",
            "r5---sn-h0jeln7e.googlevideo.com.",
            "rr2---sn-8xgp1vo-p5qe.googlevideo.com.",
            "e1234.dscb.akamaiedge.net.",
            "a248.e.akamai.net.",
            "ec2-203-0-113-25.compute-1.amazonaws.com.",
            "0A1B2C3D4E5F60718293A4B5C6D7E8F9.gr7.us-east-1.eks.amazonaws.com.",
            "a1b2c3d4e5.execute-api.us-east-1.amazonaws.com.",
            "abcdefghijklmnopqrstuvwxyz123456.lambda-url.us-east-1.on.aws.",
            "123456789012.dkr.ecr.eu-central-1.amazonaws.com.",
            "prod-eu-west-1-starport-layer-bucket.s3.eu-west-1.amazonaws.com.",
            "github-production-release-asset-2e65be.s3.amazonaws.com.",
            "_3639ac514e785e898d2646601fa951d5.a.test.",
            "bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi.ipfs.dweb.link.",
            "k8s-default-web-3f1a2b4c5d-1234567890.us-east-1.elb.amazonaws.com.",
            "3c8f4e6e-7a62-4c9c-8a3e-0123456789ab.mysql.database.azure.com.",
            "my-app-git-feature-branch-with-a-long-name-team.vercel.app.",
            "lh3.googleusercontent.com.",
            "registry.npmjs.org.",
            "files.pythonhosted.org.",
            "static.crates.io.",
        ];
        assert_eq!(raised(names), None);
        // A crawl of a site with a subdomain for each language.
        assert_eq!(
            raised((0..300).map(|n| format!("lang{n}.wikipedia.org."))),
            None
        );
        // Customers of a shared suffix are not one domain.
        assert_eq!(
            raised((0..300).map(|n| format!("{}.s3.amazonaws.com.", base32(n)))),
            None
        );
    }

    #[test]
    fn memory_is_bounded() {
        let mut alarm = Alarm::default();
        let now = Instant::now();
        for n in 0..20_000 {
            let name = Name::from_ascii(format!("x{n}.domain{n}.test.")).unwrap();
            assert_eq!(alarm.observe(&name, now), None);
        }
        assert_eq!(
            (alarm.domains.len(), alarm.counted.len()),
            (DOMAINS.get(), NAMES.get())
        );
    }
}
