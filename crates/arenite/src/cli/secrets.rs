//! Arguments of `arenite secret`.

use std::path::PathBuf;

use arenite_model::SecretName;
use clap::{Args, Subcommand, ValueEnum};

use super::{Format, Server};

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

/// A part of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RequestPart {
    Header,
    Query,
    Body,
}

impl RequestPart {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Query => "query",
            Self::Body => "body",
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
A sandbox never has the value. It gets a placeholder, and the egress proxy puts the value into requests to the secret's hosts, over
TLS only. The value is read from standard input, and a terminal does not show it.

Examples:
  arenite secret set openai --host api.openai.com < key.txt
  arenite secret set github --host github.com --host '*.github.com' --from-env GITHUB_TOKEN
  arenite create demo --env OPENAI_API_KEY='{{secret:openai}}'
  arenite secret set openai < new-key.txt                     in effect at once, also in running sandboxes")]
pub(crate) struct SecretSetArgs {
    /// Name: letters, digits, hyphens and underscores
    pub(crate) name: SecretName,
    /// Server that gets the value: a name, also with *. or :PORT; repeatable [default of an existing secret: as before]
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Vec<String>,
    /// Part of a request into which the value is put; repeatable [default: header]
    #[arg(long = "in", value_name = "PLACE", value_enum)]
    pub(crate) place: Vec<RequestPart>,
    /// Read the value from this variable
    #[arg(long, value_name = "VARIABLE", conflicts_with = "from_file")]
    pub(crate) from_env: Option<String>,
    /// Read the value from this file
    #[arg(long, value_name = "FILE")]
    pub(crate) from_file: Option<PathBuf>,
    /// Keep the value, and change hosts or places only
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
    pub(crate) format: Format,
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
