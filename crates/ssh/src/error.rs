use thiserror::Error;

/// Why a text is no key that the agent can use. No message shows a part of the text.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum KeyError {
    #[error("it is no private key of OpenSSH: the first line of one is -----BEGIN OPENSSH PRIVATE KEY-----")]
    NoPrivateKey,
    #[error("it is a public key; give the private one, which is in the file without .pub")]
    PublicInsteadOfPrivate,
    #[error("its format is {label:?} and not that of OpenSSH; convert it with: ssh-keygen -p -N '' -f FILE")]
    OtherFormat { label: String },
    #[error("it is encrypted with a passphrase, which nobody can enter here; remove it with: ssh-keygen -p -N '' -f FILE")]
    Encrypted,
    #[error("keys of the type {algorithm:?} are not supported; use ed25519, ecdsa, or rsa")]
    Algorithm { algorithm: String },
    #[error("an RSA key has 2048 to 4096 bits, and this one has {bits}")]
    RsaBits { bits: usize },
    #[error("the private key is malformed or incomplete")]
    MalformedPrivate,
    #[error("its private part does not belong to its public part")]
    Inconsistent,
    #[error("{line:?} is no host key; write TYPE KEY or HOST TYPE KEY, as ssh-keyscan prints it")]
    HostKeyLine { line: String },
    #[error("the host name is hashed; write it as it is, or leave it out")]
    HashedHost,
    #[error("the public key is malformed")]
    MalformedPublic,
}
