//! The proof that a secret was never in the guest: its bytes, plain and encoded, are looked for in
//! the guest's memory and disk. A search that finds nothing proves nothing by itself, so the
//! placeholder, which the guest did hold, is looked for in the same pass and must be found.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use memchr::memmem;

/// Read at a time; far larger than any needle.
const CHUNK_BYTES: usize = 4 * 1024 * 1024;

/// Counts how often each needle occurs in a file, in one pass and flat memory.
pub(super) fn occurrences(file: &Path, needles: &[Vec<u8>]) -> Result<Vec<usize>> {
    let overlap = needles
        .iter()
        .map(Vec::len)
        .max()
        .unwrap_or(0)
        .saturating_sub(1);
    let finders: Vec<_> = needles.iter().map(memmem::Finder::new).collect();
    let mut counts = vec![0; needles.len()];
    let mut input =
        File::open(file).with_context(|| format!("cannot read `{}`", file.display()))?;
    let mut window = Vec::with_capacity(CHUNK_BYTES + overlap);
    loop {
        let kept = window.len();
        let read = input
            .by_ref()
            .take(CHUNK_BYTES as u64)
            .read_to_end(&mut window)?;
        if read == 0 {
            return Ok(counts);
        }
        for (count, finder) in counts.iter_mut().zip(&finders) {
            // A match that lies wholly in what was kept has been counted already.
            let new = |at: &usize| at + finder.needle().len() > kept;
            *count += finder.find_iter(&window).filter(new).count();
        }
        let keep_from = window.len().saturating_sub(overlap);
        window.drain(..keep_from);
    }
}

/// The forms in which a secret could have been left behind.
pub(super) fn forms(secret: &str) -> Vec<Vec<u8>> {
    let bytes = secret.as_bytes();
    let wide = bytes.iter().flat_map(|byte| [*byte, 0]).collect();
    let hex = bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<String>()
        .into_bytes();
    let mut forms = vec![
        bytes.to_vec(),
        wide,
        hex,
        bytes.iter().rev().copied().collect(),
    ];
    forms.extend((0..3).map(|shift| base64_core(bytes, shift)));
    forms
}

/// The part of the base64 text that does not depend on what stands around the secret, for each of
/// the three positions in which it can start.
fn base64_core(bytes: &[u8], shift: usize) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let skip = (3 - shift) % 3;
    let whole = bytes.get(skip..).unwrap_or_default().chunks_exact(3);
    whole
        .flat_map(|three| {
            let bits =
                (u32::from(three[0]) << 16) | (u32::from(three[1]) << 8) | u32::from(three[2]);
            [18, 12, 6, 0].map(|at| ALPHABET[(bits >> at) as usize & 63])
        })
        .collect()
}

/// Fails when the secret is in one of the files in any form, or when the search itself is blind.
pub(super) fn prove(files: &[(&str, &Path)], secret: &str, placeholder: &str) -> Result<()> {
    let mut needles = forms(secret);
    needles.push(placeholder.as_bytes().to_vec());
    let mut placeholder_seen = 0;
    for (name, file) in files {
        let counts = occurrences(file, &needles)?;
        let (placeholders, secrets) = counts.split_last().context("there are needles")?;
        let found: usize = secrets.iter().sum();
        let mib = std::fs::metadata(file)?.len() >> 20;
        println!(
            "  {name:<12} {mib:>6} MiB   secret in {} forms: {found} times   placeholder: {placeholders} times",
            secrets.len(),
        );
        ensure!(
            found == 0,
            "the secret is in the guest's {name}: `{}`",
            file.display()
        );
        placeholder_seen += placeholders;
    }
    ensure!(
        placeholder_seen > 0,
        "the placeholder was not found either: the search proves nothing"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_across_chunks_are_counted_once() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("image");
        let mut image = vec![0; 2 * CHUNK_BYTES];
        image[CHUNK_BYTES - 3..CHUNK_BYTES + 3].copy_from_slice(b"secret");
        image[10..16].copy_from_slice(b"secret");
        std::fs::write(&file, &image)?;
        let needles = [b"secret".to_vec(), b"a longer needle".to_vec()];
        assert_eq!(occurrences(&file, &needles)?, [2, 0]);
        Ok(())
    }

    #[test]
    fn base64_is_found_in_each_alignment() {
        // `openssl base64` of `a`, `bb` and nothing in front of `topsecretvalue`.
        let encoded = [
            "dG9wc2VjcmV0dmFsdWU=",
            "YXRvcHNlY3JldHZhbHVl",
            "YmJ0b3BzZWNyZXR2YWx1ZQ==",
        ];
        for (shift, text) in encoded.into_iter().enumerate() {
            let core = base64_core(b"topsecretvalue", shift);
            let found = memmem::find(text.as_bytes(), &core);
            assert!(
                found.is_some(),
                "{text} does not hold {}",
                String::from_utf8_lossy(&core)
            );
        }
    }

    #[test]
    fn a_blind_search_is_no_proof() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("image");
        std::fs::write(&file, "only the placeholder ph_1234 here")?;
        assert!(prove(&[("memory", &file)], "the secret", "ph_1234").is_ok());
        assert!(prove(&[("memory", &file)], "the secret", "ph_absent").is_err());
        std::fs::write(&file, "ph_1234 and dGhlIHNlY3JldA==")?;
        assert!(prove(&[("memory", &file)], "the secret", "ph_1234").is_err());
        Ok(())
    }
}
