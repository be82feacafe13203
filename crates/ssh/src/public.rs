//! Public keys, and signatures by them.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED, ECDSA_P384_SHA384_FIXED_SIGNING,
    ECDSA_P521_SHA512_FIXED, ECDSA_P521_SHA512_FIXED_SIGNING, ED25519, EcdsaSigningAlgorithm, EcdsaVerificationAlgorithm,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey,
};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;

use crate::KeyError;
use crate::wire::{Reader, put_positive, put_string};

pub(crate) const ED25519_NAME: &str = "ssh-ed25519";
pub(crate) const RSA_NAME: &str = "ssh-rsa";
pub(crate) const RSA_SHA256: &str = "rsa-sha2-256";
pub(crate) const RSA_SHA512: &str = "rsa-sha2-512";
/// Characters of a type in a message.
const MAX_NAME: usize = 64;

/// A curve of ECDSA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Curve {
    P256,
    P384,
    P521,
}

impl Curve {
    const ALL: [Self; 3] = [Self::P256, Self::P384, Self::P521];

    fn of_algorithm(algorithm: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|curve| curve.algorithm() == algorithm)
    }

    pub(crate) fn algorithm(self) -> &'static str {
        match self {
            Self::P256 => "ecdsa-sha2-nistp256",
            Self::P384 => "ecdsa-sha2-nistp384",
            Self::P521 => "ecdsa-sha2-nistp521",
        }
    }

    fn name(self) -> &'static str {
        &self.algorithm()["ecdsa-sha2-".len()..]
    }

    /// Bytes of a number.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P384 => 48,
            Self::P521 => 66,
        }
    }

    pub(crate) fn signing(self) -> &'static EcdsaSigningAlgorithm {
        match self {
            Self::P256 => &ECDSA_P256_SHA256_FIXED_SIGNING,
            Self::P384 => &ECDSA_P384_SHA384_FIXED_SIGNING,
            Self::P521 => &ECDSA_P521_SHA512_FIXED_SIGNING,
        }
    }

    fn verification(self) -> &'static EcdsaVerificationAlgorithm {
        match self {
            Self::P256 => &ECDSA_P256_SHA256_FIXED,
            Self::P384 => &ECDSA_P384_SHA384_FIXED,
            Self::P521 => &ECDSA_P521_SHA512_FIXED,
        }
    }
}

/// A public key of a supported type.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    blob: Vec<u8>,
    kind: PublicKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PublicKind {
    Ed25519 { point: Vec<u8> },
    Ecdsa { curve: Curve, point: Vec<u8> },
    Rsa { exponent: Vec<u8>, modulus: Vec<u8> },
}

impl PublicKey {
    /// From the encoding of RFC 4253, section 6.6.
    pub(crate) fn from_blob(blob: &[u8]) -> Result<Self, KeyError> {
        let mut reader = Reader::new(blob);
        let algorithm = reader.text().ok_or(KeyError::MalformedPublic)?;
        let kind = match algorithm {
            ED25519_NAME => Self::ed25519(&mut reader),
            RSA_NAME => Self::rsa(&mut reader),
            _ => match Curve::of_algorithm(algorithm) {
                Some(curve) => Self::ecdsa(curve, &mut reader),
                None => return Err(KeyError::Algorithm { algorithm: algorithm.chars().take(MAX_NAME).collect() }),
            },
        };
        let kind = kind.filter(|_| reader.end().is_some()).ok_or(KeyError::MalformedPublic)?;
        Ok(Self { blob: blob.to_vec(), kind })
    }

    fn ed25519(reader: &mut Reader<'_>) -> Option<PublicKind> {
        let point = reader.string().filter(|point| point.len() == 32)?;
        Some(PublicKind::Ed25519 { point: point.to_vec() })
    }

    fn ecdsa(curve: Curve, reader: &mut Reader<'_>) -> Option<PublicKind> {
        reader.text().filter(|name| *name == curve.name())?;
        let point = reader.string().filter(|point| point.len() == 1 + 2 * curve.size() && point[0] == 4)?;
        Some(PublicKind::Ecdsa { curve, point: point.to_vec() })
    }

    fn rsa(reader: &mut Reader<'_>) -> Option<PublicKind> {
        let (exponent, modulus) = (reader.positive()?.to_vec(), reader.positive()?.to_vec());
        Some(PublicKind::Rsa { exponent, modulus })
    }

    /// The encoding of RFC 4253, section 6.6.
    pub(crate) fn blob(&self) -> &[u8] {
        &self.blob
    }

    pub(crate) fn kind(&self) -> &PublicKind {
        &self.kind
    }

    pub(crate) fn algorithm(&self) -> &'static str {
        match &self.kind {
            PublicKind::Ed25519 { .. } => ED25519_NAME,
            PublicKind::Ecdsa { curve, .. } => curve.algorithm(),
            PublicKind::Rsa { .. } => RSA_NAME,
        }
    }

    /// As `ssh-keygen -l` shows it: `SHA256:` and the digest in base64.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.blob)
    }

    /// Whether a signature in SSH's encoding is by this key. SHA-1 is refused.
    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        self.verify(message, signature).is_some()
    }

    fn verify(&self, message: &[u8], signature: &[u8]) -> Option<()> {
        let mut reader = Reader::new(signature);
        let (algorithm, value) = (reader.text()?, reader.string()?);
        reader.end()?;
        match &self.kind {
            PublicKind::Ed25519 { point } => {
                (algorithm == ED25519_NAME).then_some(())?;
                UnparsedPublicKey::new(&ED25519, point).verify(message, value).ok()
            }
            PublicKind::Ecdsa { curve, point } => {
                (algorithm == curve.algorithm()).then_some(())?;
                let fixed = fixed_length(value, curve.size())?;
                UnparsedPublicKey::new(curve.verification(), point).verify(message, &fixed).ok()
            }
            PublicKind::Rsa { exponent, modulus } => {
                let parameters: &RsaParameters = match algorithm {
                    RSA_SHA256 => &RSA_PKCS1_2048_8192_SHA256,
                    RSA_SHA512 => &RSA_PKCS1_2048_8192_SHA512,
                    _ => return None,
                };
                RsaPublicKeyComponents { n: modulus, e: exponent }.verify(parameters, message, value).ok()
            }
        }
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.algorithm(), self.fingerprint())
    }
}

pub(crate) fn fingerprint(blob: &[u8]) -> String {
    format!("SHA256:{}", BASE64_STANDARD_NO_PAD.encode(digest(&SHA256, blob)))
}

/// The two numbers of a signature by ECDSA, of the same length: as SSH has them.
pub(crate) fn two_numbers(fixed: &[u8]) -> Vec<u8> {
    let (r, s) = fixed.split_at(fixed.len() / 2);
    let mut numbers = Vec::new();
    put_positive(&mut numbers, r);
    put_positive(&mut numbers, s);
    numbers
}

fn fixed_length(numbers: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut reader = Reader::new(numbers);
    let mut fixed = Vec::with_capacity(2 * size);
    for _ in 0..2 {
        let number = reader.positive()?;
        fixed.extend(std::iter::repeat_n(0, size.checked_sub(number.len())?));
        fixed.extend(number);
    }
    reader.end()?;
    Some(fixed)
}

/// A signature in SSH's encoding.
pub(crate) fn signature(algorithm: &str, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_string(&mut out, algorithm.as_bytes());
    put_string(&mut out, value);
    out
}
