//! Arguments of `arenite trajectory annotate`, `annotations` and `unannotate`.

use arenite_model::{AnnotationId, AnnotationLabel};
use clap::Args;

use super::{Format, ListOutput, Server};

/// Trajectories selected by their annotations.
#[derive(Debug, Args)]
pub(crate) struct Annotated {
    /// Only trajectories with annotations
    #[arg(long)]
    pub(crate) annotated: bool,
    /// Only trajectories with this label, on them or on a step; repeatable, then with all of them
    #[arg(long, value_name = "LABEL")]
    pub(crate) label: Vec<AnnotationLabel>,
    /// Only trajectories with at least this mean rating, from 1 to 5
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    pub(crate) min_rating: Option<u8>,
}

impl Annotated {
    /// The parameters of a query.
    pub(crate) fn query(&self) -> Vec<String> {
        let annotated = self.annotated.then(|| "annotated=true".to_owned());
        // A label has no character that a query encodes, except / and :, which it may have.
        let labels = self.label.iter().map(|label| format!("label={label}"));
        let rating = self.min_rating.map(|rating| format!("min_rating={rating}"));
        annotated.into_iter().chain(labels).chain(rating).collect()
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
An annotation has a note, labels, or a rating from 1 (the worst) to 5 (the best). It is about the whole
trajectory, or about one step. Annotations are kept beside the record, which they don't change, and exported with
it.

Examples:
  arenite trajectory annotate demo --rating 4 --label good
  arenite trajectory annotate demo --step 7 --label wrong-tool --note \"should have read the file first\"
  arenite trajectory annotate demo --step 7 --note - < note.txt
  arenite trajectory annotate demo --edit n3k9x0qz7a2m --rating 2 --clear note")]
pub(crate) struct TrajectoryAnnotateArgs {
    /// Trajectory id, or the name of a sandbox or worker for its latest; a unique prefix is enough
    pub(crate) trajectory: String,
    /// Annotate this step, and not the whole trajectory
    #[arg(long, value_name = "STEP", conflicts_with = "edit")]
    pub(crate) step: Option<u64>,
    /// Text of at most 8 KiB; - reads it from standard input
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// Label of lower-case letters, digits and inner . _ : / -; repeatable, at most 16
    #[arg(long, value_name = "LABEL")]
    pub(crate) label: Vec<AnnotationLabel>,
    /// Rating from 1 to 5
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    pub(crate) rating: Option<u8>,
    /// Change this annotation: what is given replaces what it has
    #[arg(long, value_name = "ID")]
    pub(crate) edit: Option<AnnotationId>,
    /// Remove this from the annotation; repeatable
    #[arg(long, value_name = "WHAT", value_parser = ["note", "labels", "rating"], requires = "edit")]
    pub(crate) clear: Vec<String>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite trajectory annotations demo
  arenite trajectory annotations demo --step 7
  arenite trajectory annotations demo --json | jq '.annotations[] | select(.rating < 3)'")]
pub(crate) struct TrajectoryAnnotationsArgs {
    /// Trajectory id, or the name of a sandbox or worker for its latest; a unique prefix is enough
    pub(crate) trajectory: String,
    /// Only annotations of this step
    #[arg(long, value_name = "STEP")]
    pub(crate) step: Option<u64>,
    #[command(flatten)]
    pub(crate) output: ListOutput,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite trajectory unannotate demo n3k9x0qz7a2m
  arenite trajectory unannotate s3k9x0qz7a2m --all     also after its record is gone")]
pub(crate) struct TrajectoryUnannotateArgs {
    /// Trajectory id, or the name of a sandbox or worker for its latest; a unique prefix is enough
    pub(crate) trajectory: String,
    /// Ids of the annotations
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub(crate) ids: Vec<AnnotationId>,
    /// All annotations of the trajectory
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) server: Server,
}
