//! Puts the authority's own name on a certificate, byte for byte.
//!
//! A verifier joins leaf and authority by comparing the encoded names (RFC 5280 section 7.1), and
//! an organisation's own authority may carry a name that `rcgen` can't repeat: two `DC`
//! components, an unusual string type. So `rcgen` writes the certificate, and the issuer field is
//! replaced by the encoded subject of the authority before it is signed for good.

use rcgen::{KeyPair, SigningKey as _};

/// The place of the issuer among the fields of a v3 `TBSCertificate` (RFC 5280 section 4.1):
/// version, serial number, signature algorithm, issuer.
const ISSUER_FIELD: usize = 3;

const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;

/// `certificate` with `subject` (an encoded `Name`) as its issuer, signed by `key`.
///
/// `None` if `certificate` is not the DER that `rcgen` writes or the key can't sign.
pub(super) fn with_issuer(certificate: &[u8], subject: &[u8], key: &KeyPair) -> Option<Vec<u8>> {
    let [to_be_signed, algorithm, _signature] = fields(certificate)?.try_into().ok()?;
    let mut parts: Vec<&[u8]> = fields(to_be_signed)?;
    *parts.get_mut(ISSUER_FIELD)? = subject;

    let to_be_signed = encode(SEQUENCE, &parts);
    let signature = key.sign(&to_be_signed).ok()?;
    // A bit string starts with the number of unused bits; a signature has none.
    let signature = encode(BIT_STRING, &[&[0], &signature]);
    Some(encode(SEQUENCE, &[&to_be_signed, algorithm, &signature]))
}

/// The encoded elements of an encoded sequence.
fn fields(sequence: &[u8]) -> Option<Vec<&[u8]>> {
    let (header, length) = header(sequence)?;
    let mut rest = sequence.get(header..header.checked_add(length)?)?;
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let (header, length) = self::header(rest)?;
        let (field, tail) = rest.split_at_checked(header.checked_add(length)?)?;
        fields.push(field);
        rest = tail;
    }
    Some(fields)
}

/// The length of the header and of the contents of the first element. Tags of one byte only.
fn header(der: &[u8]) -> Option<(usize, usize)> {
    let first = usize::from(*der.get(1)?);
    if first < 0x80 {
        return Some((2, first));
    }
    let bytes = der.get(2..2 + (first & 0x7f))?;
    let length = bytes.iter().try_fold(0usize, |length, byte| {
        length.checked_mul(256)?.checked_add(usize::from(*byte))
    })?;
    Some((2 + bytes.len(), length))
}

fn encode(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let contents = parts.concat();
    let mut der = vec![tag];
    let length = contents.len().to_be_bytes();
    match u8::try_from(contents.len()) {
        Ok(short) if short < 0x80 => der.push(short),
        _ => {
            let significant: Vec<u8> = length.into_iter().skip_while(|byte| *byte == 0).collect();
            // At most eight bytes: the length is a `usize`.
            der.push(0x80 | significant.len() as u8);
            der.extend(significant);
        }
    }
    der.extend(contents);
    der
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_issuer_and_the_signature_change() {
        let key = KeyPair::generate().unwrap();
        let made = rcgen::CertificateParams::new(vec!["a.test".into()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        let subject = encode(SEQUENCE, &[&[0x31, 0]]);
        let changed = with_issuer(made.der(), &subject, &key).unwrap();

        let before = fields(fields(made.der()).unwrap()[0]).unwrap();
        let outer = fields(&changed).unwrap();
        let after = fields(outer[0]).unwrap();
        assert_eq!(after[ISSUER_FIELD], subject);
        assert_eq!(before.len(), after.len());
        for place in (0..before.len()).filter(|place| *place != ISSUER_FIELD) {
            assert_eq!(before[place], after[place], "field {place}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_read_back(parts in prop::collection::vec(
            prop::collection::vec(any::<u8>(), 0..300), 0..5,
        )) {
            let encoded: Vec<Vec<u8>> =
                parts.iter().map(|part| encode(0x04, &[part.as_slice()])).collect();
            let slices: Vec<&[u8]> = encoded.iter().map(Vec::as_slice).collect();
            let sequence = encode(SEQUENCE, &slices);
            prop_assert_eq!(fields(&sequence), Some(slices));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = fields(&bytes);
        }
    }
}
