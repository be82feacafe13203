//! The developer's menu: `cargo xtask TASK`. Each task has a file; shared parts have separate files.

#![forbid(unsafe_code)]

mod arrows;
mod bench;
mod binary;
mod chart;
mod clients;
mod command;
mod container_image;
mod decoy;
mod dist;
mod failure;
mod fmt;
mod fuzz;
mod go;
mod host;
mod image;
mod kubernetes;
mod lanes;
mod lint;
mod openapi;
mod pictures;
mod python;
mod server;
mod soak;
mod test;
mod up;
mod web;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Arenite's developer commands", arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Prepare this host, build everything and start the server; the second time takes seconds
    Up(up::UpArgs),
    /// Stop the server that `up` started; its sandboxes keep running
    Down(up::DownArgs),
    /// Prepare this host and run every test
    Test(test::TestArgs),
    TestKubernetes(kubernetes::TestKubernetesArgs),
    Kubernetes(kubernetes::KubernetesArgs),
    /// Check format, clippy and dependencies
    Lint,
    /// Format the code
    Fmt,
    /// Measure, next to floors from the same run
    Bench(bench::BenchArgs),
    /// Put long loads on a server
    Soak(soak::SoakArgs),
    /// Look for inputs that break what reads layers, manifests, Dockerfiles, and references
    Fuzz(fuzz::FuzzArgs),
    /// Build the console and the dashboard; every task that builds the server does it before
    Web,
    /// Build an image into the data directory
    Image(image::ImageArgs),
    /// Take the README's pictures from a running server
    Pictures(pictures::PicturesArgs),
    /// Build what users install: a tarball, a Debian package, a container image, checksums and a bill of materials
    Dist(dist::DistArgs),
    /// Build the container image of the control plane, as a file for `docker load` and containerd
    ContainerImage(container_image::ContainerImageArgs),
    /// Compare what the Helm chart renders to with install.yaml and the golden files, or rewrite them
    Chart(chart::ChartArgs),
    /// Compare the OpenAPI documents and other golden files, or rewrite them
    Openapi(openapi::OpenapiArgs),
    /// Generate and package the clients for Python and TypeScript
    Clients(clients::ClientsArgs),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Up(args) => up::run(&args),
        Task::Down(args) => up::down(&args),
        Task::Test(args) => test::run(&args),
        Task::TestKubernetes(args) => kubernetes::test(&args),
        Task::Kubernetes(args) => kubernetes::run(&args),
        Task::Lint => lint::run(),
        Task::Fmt => fmt::run(),
        Task::Bench(args) => bench::run(&args),
        Task::Soak(args) => soak::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Web => web::build(),
        Task::Image(args) => image::run(&args),
        Task::Pictures(args) => pictures::run(&args),
        Task::Dist(args) => dist::run(&args),
        Task::ContainerImage(args) => container_image::run(&args),
        Task::Chart(args) => chart::run(&args),
        Task::Openapi(args) => openapi::run(&args),
        Task::Clients(args) => clients::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}
