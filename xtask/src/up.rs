//! `cargo xtask up`: from a clone to a running server.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde::Deserialize;

use crate::binary::Profile;
use crate::failure::{Failure, Outcome};
use crate::server::{self, Build, Started};
use crate::{binary, command, host, image};

/// The image that is built first. The server uses it while a larger one is being built.
const BASE: &str = "base";

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Port of the server on 127.0.0.1
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Image of new sandboxes: `base` is built in a minute, `aio` has all tools
    #[arg(long, default_value = "aio")]
    image: String,
    /// The server's data directory
    #[arg(long, default_value = "/var/lib/arenite", value_name = "DIR")]
    data_dir: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Info {
    version: String,
}

pub(crate) fn run(args: &UpArgs) -> Outcome {
    let begun = Instant::now();
    let step = |what: &str| eprintln!("\n== {what} ({:.0} s so far)", begun.elapsed().as_secs_f64());
    host::must_be_root("up")?;
    step("1 of 4: what the host lacks");
    host::prepare(&[host::TO_BUILD, host::TO_RUN])?;
    step("2 of 4: pages and program; the first time, this takes minutes");
    let arenite = binary::build(Profile::Release)?;
    doctor(&arenite, &args.data_dir)?;
    let port = args.port;
    step("3 of 4: image base");
    image::ensure(&arenite, BASE, &args.data_dir)?;
    let larger: Vec<String> = image::chain(&args.image).into_iter().filter(|name| name != BASE).collect();
    if !larger.is_empty() && Started::find(port).is_none() && !image::is_built(&arenite, &args.image, &args.data_dir) {
        step("4 of 4: the server, with image base");
        let how = serve(&arenite, args, BASE)?;
        let took = begun.elapsed().as_secs_f64();
        println!("\nArenite {how} at http://127.0.0.1:{port} ({took:.1} s) with image {BASE}. New sandboxes work from now on.");
        println!("Building larger images meanwhile: {}.", larger.join(", "));
    }
    for (number, name) in (1..).zip(&larger) {
        step(&format!("larger image {number} of {}: {name}", larger.len()));
        image::build_one(&arenite, name, &args.data_dir)?;
    }
    step("the server, with the image of new sandboxes");
    let how = serve(&arenite, args, &args.image)?;
    println!("\nArenite {how} at http://127.0.0.1:{port} ({:.1} s)\n", begun.elapsed().as_secs_f64());
    println!("  console        http://127.0.0.1:{port}/");
    println!("  dashboard      http://127.0.0.1:{port}/index.html");
    println!("  API document   http://127.0.0.1:{port}/v1/docs");
    println!("  MCP            http://127.0.0.1:{port}/mcp");
    println!("  log            {}", log(port).display());
    if Started::find(port).is_some() {
        println!("  stop it with   cargo xtask down{}", if port == 8080 { String::new() } else { format!(" --port {port}") });
    }
    println!("\nA first call:\n");
    println!("  curl -s http://127.0.0.1:{port}/v1/shell/exec -H 'Content-Type: application/json' \\");
    println!("    -d '{{\"command\": \"echo hello from $(hostname)\"}}'");
    println!("\nFrom Python (pip install agent-sandbox):\n");
    println!("  from agent_sandbox import Sandbox");
    println!("  client = Sandbox(base_url=\"http://127.0.0.1:{port}\")");
    println!("  print(client.shell.exec_command(command=\"uname -a\").data.output)");
    println!("\nWith AgentFlow's client (pip install ./clients/python):\n");
    println!("  from sandbox import Sandbox");
    println!("  with Sandbox() as sandbox:");
    println!("      print(sandbox.execute_sync(\"bash:run\", {{\"command\": \"uname -a\"}})[\"data\"][\"stdout\"])");
    let server = if port == 8080 { String::new() } else { format!(" --server http://127.0.0.1:{port}") };
    println!("\nFrom the command line:\n");
    for words in ["create demo", "exec demo"] {
        println!("  {} {words}{server}", arenite.display());
    }
    Ok(())
}

#[derive(Debug, Args)]
pub(crate) struct DownArgs {
    /// Port of the server on 127.0.0.1
    #[arg(long, default_value_t = 8080)]
    port: u16,
}

/// Stops the server that [`run`] started.
pub(crate) fn down(args: &DownArgs) -> Outcome {
    let port = args.port;
    let Some(started) = Started::find(port) else {
        return Err(Failure::new(format!("no server that `cargo xtask up` started runs on port {port}")));
    };
    started.stop()?;
    println!("stopped the server on port {port}; its sandboxes keep running until the next start re-adopts them");
    Ok(())
}

/// Runs `doctor` on the host; shows the table only if something is missing.
pub(crate) fn doctor(arenite: &Path, data_dir: &Path) -> Outcome {
    let mut check = command::program(arenite);
    check.arg("doctor").arg("--data-dir").arg(data_dir);
    let mut quiet = command::program(arenite);
    quiet.arg("doctor").arg("--data-dir").arg(data_dir);
    if command::succeeds(&mut quiet) {
        return Ok(());
    }
    command::run(&mut check).map_err(|_| Failure::new("this host lacks what sandboxes need: the table above says what to do"))
}

fn log(port: u16) -> PathBuf {
    command::target_dir().join(format!("server-{port}.log"))
}

/// Ensures that this build serves on the port with this default image, and returns what was done.
fn serve(arenite: &Path, args: &UpArgs, image: &str) -> Result<&'static str, Failure> {
    let port = args.port;
    let mut arguments = vec!["--listen".to_owned(), format!("127.0.0.1:{port}")];
    arguments.extend(["--data-dir".to_owned(), args.data_dir.display().to_string()]);
    if image != BASE {
        arguments.extend(["--default-image".to_owned(), image.to_owned()]);
    }
    if let Some((variable, file)) = host::extra_ca() {
        eprintln!("{variable} is set here: sandboxes will trust the authorities of {file} too");
        arguments.extend(["--extra-ca".to_owned(), file]);
    }
    let other = |what: &str| Err(Failure::new(format!("{what} on port {port}; stop it, or use --port")));
    match (Started::find(port), server::get(port, "/api/v2/info")) {
        (Some(started), Some(_)) if started.build == Build::from_binary(arenite)? && started.arguments == arguments => {
            return Ok("runs already, the same build,");
        }
        (Some(started), _) => {
            eprintln!("the server on port {port} has another build or other settings: replacing it; its sandboxes keep running");
            // The first four are the address and the data directory, which a successor must share.
            if started.arguments.get(..4) == arguments.get(..4) {
                server::replace(&started, arenite, port, &arguments, &log(port))?;
            } else {
                started.stop()?;
                server::start(arenite, port, &arguments, &log(port))?;
            }
            return Ok("was restarted");
        }
        (None, Some((200, body))) => {
            return match serde_json::from_str::<Info>(&body) {
                Ok(info) if info.version == env!("CARGO_PKG_VERSION") => Ok("runs already, started by someone else,"),
                Ok(info) => other(&format!("an Arenite {} that this task didn't start runs", info.version)),
                Err(_) => other("another server is"),
            };
        }
        (None, Some(_)) => return other("another server is"),
        (None, None) => {}
    }
    server::start(arenite, port, &arguments, &log(port))?;
    Ok("runs")
}
