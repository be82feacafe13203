//! Arguments of `arenite secret`.

use std::path::PathBuf;

use arenite_model::SecretName;
use clap::{Args, Subcommand, ValueEnum};

use super::{Format, ListOutput, Server};

#[derive(Debug, Subcommand)]
pub(crate) enum SecretCommand {
    /// Create a secret, or change its value, hosts or places
    Set(SecretSetArgs),
    /// List secrets, without their values
    Ls(SecretLsArgs),
    /// Remove secrets; requests of sandboxes with them are refused at once
    Rm(SecretRmArgs),
    /// Print a random key for --secret-key-file
    GenerateKey,
    /// Encrypt all secrets with the first key, after the keys were changed
    Reencrypt(SecretReencryptArgs),
}

/// A part of a request or a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RequestPart {
    Header,
    Query,
    Body,
    /// The password of a Postgres connection
    Postgres,
    /// Signatures of SSH logins, with a private key as the value
    Ssh,
}

impl RequestPart {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Query => "query",
            Self::Body => "body",
            Self::Postgres => "postgres",
            Self::Ssh => "ssh",
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
A sandbox never has the value. It gets a placeholder, and the egress proxy puts the value into requests and Postgres logins to the
secret's hosts, over TLS only. The value is read from standard input, and a terminal does not show it.

With --in ssh, the value is a private key of OpenSSH without a passphrase. Programs in the sandbox find an SSH agent at SSH_AUTH_SOCK,
and the server signs. With --host-keys, only logins to servers with these keys are signed.

Examples:
  arenite secret set openai --host api.openai.com < key.txt
  arenite secret set github --host github.com --host '*.github.com' --from-env GITHUB_TOKEN
  arenite secret set database --host db.example.com --in postgres --from-file password.txt
  arenite create demo --env OPENAI_API_KEY='{{secret:openai}}'
  ssh-keyscan git.example.com > host-keys.txt                 compare them with what the server's operator published
  arenite secret set deploy --host git.example.com --in ssh --from-file id_ed25519 --host-keys host-keys.txt
  arenite create builder --secret deploy --allow git.example.com:22/tcp
  arenite secret set openai < new-key.txt                     in effect at once, also in running sandboxes")]
pub(crate) struct SecretSetArgs {
    /// Name: letters, digits, hyphens and underscores
    pub(crate) name: SecretName,
    /// Server that gets the value: a name, also with *. or :PORT; repeatable [default of an existing secret: as before]
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Vec<String>,
    /// Where the value is put; repeatable [default: header]
    #[arg(long = "in", value_name = "PLACE", value_enum)]
    pub(crate) place: Vec<RequestPart>,
    /// For SSH: file with keys of the servers, as ssh-keyscan prints them; an empty one removes them
    #[arg(long, value_name = "FILE")]
    pub(crate) host_keys: Option<PathBuf>,
    /// Read the value from this variable
    #[arg(long, value_name = "VARIABLE", conflicts_with = "from_file")]
    pub(crate) from_env: Option<String>,
    /// Read the value from this file
    #[arg(long, value_name = "FILE")]
    pub(crate) from_file: Option<PathBuf>,
    /// Keep the value, and change the other settings only
    #[arg(long, conflicts_with_all = ["from_env", "from_file"])]
    pub(crate) keep_value: bool,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct SecretLsArgs {
    #[command(flatten)]
    pub(crate) output: ListOutput,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct SecretRmArgs {
    /// Names of the secrets
    #[arg(required = true)]
    pub(crate) names: Vec<SecretName>,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
To replace the key: write the new one into the first line of the key file, run this, then delete the earlier line.

  arenite secret generate-key")]
pub(crate) struct SecretReencryptArgs {
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}
