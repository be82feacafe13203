//! Instructions that only change the image's configuration.

use std::collections::BTreeSet;

use super::steps::{check_path, check_size, lexical};
use super::{Building, refused};
use crate::error::ImageError;
use crate::image::HealthConfig;
use crate::imagefile::{Argument, Command, Healthcheck, Source, Text};

/// Maximum number of ports, or of volumes, of an image.
const MAX_SET: usize = 1000;
/// Maximum size of a command, in bytes.
const MAX_COMMAND_BYTES: usize = 128 << 10;

impl Building<'_> {
    pub(super) fn env(&mut self, pairs: &[(String, Text)], source: &Source) -> Result<u64, ImageError> {
        // All values of one ENV see the environment before it.
        let mut values = Vec::with_capacity(pairs.len());
        for (name, value) in pairs {
            values.push((name.clone(), self.expand(value, source)?));
        }
        self.config.env.extend(values);
        check_size(&self.config.env, "environment", source)
    }

    pub(super) fn arg(&mut self, arguments: &[Argument], source: &Source) -> Result<u64, ImageError> {
        for Argument { name, default, .. } in arguments {
            let value = match (self.request.options.build_args.get(name), default) {
                (Some(given), _) => Some(given.clone()),
                (None, Some(default)) => Some(self.expand(default, source)?),
                (None, None) => self.globals.get(name).cloned(),
            };
            if let Some(value) = value {
                self.arguments.insert(name.clone(), value);
            }
        }
        check_size(&self.arguments, "build arguments", source)
    }

    pub(super) fn label(&mut self, pairs: &[(Text, Text)], source: &Source) -> Result<u64, ImageError> {
        for (name, value) in pairs {
            let pair = (self.expand(name, source)?, self.expand(value, source)?);
            self.config.labels.extend([pair]);
        }
        check_size(&self.config.labels, "labels", source)
    }

    pub(super) fn shell(&mut self, shell: &[String]) -> u64 {
        self.config.shell = shell.to_vec();
        0
    }

    pub(super) fn entrypoint(&mut self, command: &Command, source: &Source) -> Result<u64, ImageError> {
        self.config.entrypoint = self.command(command, source)?;
        // The base's CMD has arguments of another program.
        if !self.has_own_cmd {
            self.config.cmd.clear();
        }
        Ok(0)
    }

    pub(super) fn cmd(&mut self, command: &Command, source: &Source) -> Result<u64, ImageError> {
        self.config.cmd = self.command(command, source)?;
        self.has_own_cmd = true;
        Ok(0)
    }

    fn command(&self, command: &Command, source: &Source) -> Result<Vec<String>, ImageError> {
        let argv = self.argv(command);
        if argv.iter().map(|word| word.len() + 1).sum::<usize>() > MAX_COMMAND_BYTES {
            return Err(refused(source, format!("the command has more than {MAX_COMMAND_BYTES} bytes"), None));
        }
        Ok(argv)
    }

    pub(super) fn expose(&mut self, ports: &[Text], source: &Source) -> Result<u64, ImageError> {
        for text in ports {
            let given = self.expand(text, source)?;
            // An unset variable may leave several ports, or none.
            for word in given.split_whitespace() {
                let ports = parse_ports(word).ok_or_else(|| {
                    let hint = "give a port from 1 to 65535 or a range, optionally with /tcp or /udp";
                    refused(source, format!("EXPOSE {word:?} is not valid"), Some(hint.to_owned()))
                })?;
                self.config.exposed_ports.extend(ports);
            }
        }
        check_set(&self.config.exposed_ports, "ports", source)
    }

    pub(super) fn volume(&mut self, paths: &[Text], source: &Source) -> Result<u64, ImageError> {
        for text in paths {
            let path = self.expand(text, source)?;
            check_path(&path, source)?;
            let base = self.config.workdir.as_deref().unwrap_or("/");
            self.config.volumes.insert(lexical(&std::path::Path::new(base).join(path)));
        }
        check_set(&self.config.volumes, "volumes", source)
    }

    pub(super) fn stop_signal(&mut self, signal: &Text, source: &Source) -> Result<u64, ImageError> {
        let signal = self.expand(signal, source)?;
        let is_number = signal.parse().is_ok_and(|number: u8| (1..=64).contains(&number));
        let is_name = signal.len() <= 16
            && signal.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
            && signal.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-".contains(&b));
        if !is_number && !is_name {
            let hint = "give a name such as SIGTERM, or a number from 1 to 64";
            return Err(refused(source, format!("STOPSIGNAL {signal:?} is not valid"), Some(hint.to_owned())));
        }
        self.config.stop_signal = Some(signal);
        Ok(0)
    }

    pub(super) fn healthcheck(&mut self, check: Option<&Healthcheck>, source: &Source) -> Result<u64, ImageError> {
        let Some(check) = check else {
            self.config.healthcheck = Some(HealthConfig { test: vec!["NONE".to_owned()], ..HealthConfig::default() });
            return Ok(0);
        };
        self.command(&check.command, source)?;
        let test = match &check.command {
            Command::Exec(argv) => [&["CMD".to_owned()][..], argv].concat(),
            Command::Shell(text) => vec!["CMD-SHELL".to_owned(), text.clone()],
        };
        let nanoseconds =
            |time: Option<std::time::Duration>| time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.config.healthcheck = Some(HealthConfig {
            test,
            interval: nanoseconds(check.interval),
            timeout: nanoseconds(check.timeout),
            start_period: nanoseconds(check.start_period),
            start_interval: nanoseconds(check.start_interval),
            retries: check.retries.unwrap_or(0),
        });
        Ok(0)
    }
}

/// `80`, `80/udp`, `8000-8010/tcp`, each as `80/tcp`.
fn parse_ports(text: &str) -> Option<Vec<String>> {
    let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let protocol = protocol.to_ascii_lowercase();
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let port = |text: &str| text.parse().ok().filter(|port: &u16| *port > 0 && text.bytes().all(|b| b.is_ascii_digit()));
    let (first, last) = (port(first)?, port(last)?);
    let is_valid = first <= last && matches!(protocol.as_str(), "tcp" | "udp" | "sctp");
    is_valid.then(|| (first..=last).map(|port| format!("{port}/{protocol}")).collect())
}

fn check_set(set: &BTreeSet<String>, what: &str, source: &Source) -> Result<u64, ImageError> {
    if set.len() > MAX_SET {
        return Err(refused(source, format!("there are more than {MAX_SET} {what}"), None));
    }
    Ok(0)
}
