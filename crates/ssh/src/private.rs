//! Private keys in OpenSSH's format.

use std::fmt;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{EcdsaKeyPair, Ed25519KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA512, RsaKeyPair};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use zeroize::Zeroizing;

use crate::KeyError;
use crate::public::{Curve, ED25519_NAME, PublicKey, PublicKind, RSA_SHA256, RSA_SHA512, signature, two_numbers};
use crate::rsa::RsaNumbers;
use crate::wire::Reader;

const BEGIN: &str = "-----BEGIN ";
const DASHES: &str = "-----";
const LABEL: &str = "OPENSSH PRIVATE KEY";
const END: &str = "-----END OPENSSH PRIVATE KEY-----";
const MAGIC: &[u8] = b"openssh-key-v1\0";
/// Characters of a label in a message.
const MAX_LABEL: usize = 40;
/// Bits of an RSA key. What is longer takes too much time for each signature.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=4096;

/// A private key without a passphrase. `Debug` shows its public part.
pub struct PrivateKey {
    public: PublicKey,
    pair: Pair,
}

enum Pair {
    Ed25519(Ed25519KeyPair),
    Ecdsa(Curve, EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl PrivateKey {
    /// Reads a key as `ssh-keygen` writes it, with any line breaks, and checks that its two parts belong together.
    pub fn from_openssh(text: &str) -> Result<Self, KeyError> {
        let bytes = decode(text)?;
        let mut reader = Reader::new(&bytes);
        reader.take(MAGIC.len()).filter(|magic| *magic == MAGIC).ok_or(KeyError::MalformedPrivate)?;
        let (cipher, public, private) = sections(reader).ok_or(KeyError::MalformedPrivate)?;
        if cipher != b"none" {
            return Err(KeyError::Encrypted);
        }
        let public = PublicKey::from_blob(public)?;
        let pair = read_pair(&public, Reader::new(private))?;
        Ok(Self { public, pair })
    }

    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// A signature in SSH's encoding. None: the key does not sign by this algorithm.
    pub(crate) fn sign(&self, algorithm: &str, message: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Ed25519(pair) => (algorithm == ED25519_NAME).then(|| signature(algorithm, pair.sign(message).as_ref())),
            Pair::Ecdsa(curve, pair) => {
                (algorithm == curve.algorithm()).then_some(())?;
                let fixed = pair.sign(&random, message).ok()?;
                Some(signature(algorithm, &two_numbers(fixed.as_ref())))
            }
            Pair::Rsa(pair) => {
                let encoding = match algorithm {
                    RSA_SHA256 => &RSA_PKCS1_SHA256,
                    RSA_SHA512 => &RSA_PKCS1_SHA512,
                    _ => return None,
                };
                let mut value = vec![0; pair.public_modulus_len()];
                pair.sign(encoding, &random, message, &mut value).ok()?;
                Some(signature(algorithm, &value))
            }
        }
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PrivateKey").field(&self.public).finish()
    }
}

/// The bytes between the first and the last line.
fn decode(text: &str) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let text = text.trim();
    let Some((label, rest)) = text.strip_prefix(BEGIN).and_then(|rest| rest.split_once(DASHES)) else {
        let is_public = text.starts_with("ssh-") || text.starts_with("ecdsa-") || text.starts_with("sk-");
        return Err(match (is_public, text.starts_with("PuTTY")) {
            (true, _) => KeyError::PublicInsteadOfPrivate,
            (_, true) => KeyError::OtherFormat { label: "PuTTY".to_owned() },
            _ => KeyError::NoPrivateKey,
        });
    };
    if label != LABEL {
        return Err(KeyError::OtherFormat { label: label.chars().take(MAX_LABEL).collect() });
    }
    let content = rest.strip_suffix(END).ok_or(KeyError::MalformedPrivate)?;
    let content: Zeroizing<String> = Zeroizing::new(content.split_ascii_whitespace().collect());
    BASE64_STANDARD.decode(content.as_bytes()).map(Zeroizing::new).map_err(|_| KeyError::MalformedPrivate)
}

/// Cipher, public key, and private part of a file with one key.
fn sections(mut reader: Reader<'_>) -> Option<(&[u8], &[u8], &[u8])> {
    let cipher = reader.string()?;
    let (_derivation, _options) = (reader.string()?, reader.string()?);
    (reader.number()? == 1).then_some(())?;
    let (public, private) = (reader.string()?, reader.string()?);
    reader.end()?;
    Some((cipher, public, private))
}

fn read_pair(public: &PublicKey, mut reader: Reader<'_>) -> Result<Pair, KeyError> {
    let malformed = KeyError::MalformedPrivate;
    let checks = (reader.number(), reader.number());
    if checks.0.is_none() || checks.0 != checks.1 || reader.text() != Some(public.algorithm()) {
        return Err(malformed);
    }
    let pair = match public.kind() {
        PublicKind::Ed25519 { point } => {
            let (repeated, both) = (reader.string(), reader.string().filter(|both| both.len() == 64).ok_or(malformed)?);
            let is_same = repeated == Some(point) && both[32..] == **point;
            let pair = Ed25519KeyPair::from_seed_and_public_key(&both[..32], point).ok().filter(|_| is_same);
            Pair::Ed25519(pair.ok_or(KeyError::Inconsistent)?)
        }
        PublicKind::Ecdsa { curve, point } => {
            let repeated = (reader.string(), reader.string());
            let number = reader.positive().filter(|number| number.len() <= curve.size()).ok_or(malformed)?;
            // The library wants all bytes.
            let mut scalar = Zeroizing::new(vec![0; curve.size()]);
            scalar[curve.size() - number.len()..].copy_from_slice(number);
            let pair = EcdsaKeyPair::from_private_key_and_public_key(curve.signing(), &scalar, point).ok();
            Pair::Ecdsa(*curve, pair.filter(|_| repeated.1 == Some(point)).ok_or(KeyError::Inconsistent)?)
        }
        PublicKind::Rsa { exponent, modulus } => {
            let bits = modulus.len() * 8 - modulus.first().map_or(0, |byte| byte.leading_zeros() as usize);
            if !RSA_BITS.contains(&bits) {
                return Err(KeyError::RsaBits { bits });
            }
            let mut number = || reader.positive().ok_or(KeyError::MalformedPrivate);
            let (n, e, d, coefficient, p, q) = (number()?, number()?, number()?, number()?, number()?, number()?);
            if n != modulus || e != exponent {
                return Err(KeyError::Inconsistent);
            }
            let numbers = RsaNumbers { modulus, public_exponent: exponent, private_exponent: d, coefficient, primes: [p, q] };
            Pair::Rsa(RsaKeyPair::from_der(&numbers.der()).map_err(|_| KeyError::Inconsistent)?)
        }
    };
    let is_padding = |reader: Reader<'_>| reader.rest().iter().zip(1u8..).all(|(byte, number)| *byte == number);
    let comment = reader.string();
    if comment.is_none() || !is_padding(reader) || reader.rest().len() >= 16 {
        return Err(KeyError::MalformedPrivate);
    }
    Ok(pair)
}
