//! The presets that are files under `config/presets`, as they were when Outgate was built.

use super::Listing;

macro_rules! presets {
    ($($name:literal)+) => {
        const PRESETS: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../../config/presets/", $name, ".yaml"))),)+
        ];
    };
}

presets! {
    "anthropic"
    "aws-s3"
    "container-images"
    "gemini"
    "github-read"
    "github-write"
    "gitlab"
    "huggingface"
    "openai"
}

/// Name and text of a preset.
pub(super) fn find(name: &str) -> Option<(&'static str, &'static str)> {
    PRESETS.iter().copied().find(|(known, _)| *known == name)
}

/// Each preset with the first line of its file.
pub(super) fn list() -> impl Iterator<Item = Listing> {
    PRESETS.iter().map(|&(name, text)| Listing {
        name,
        summary: text
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches("# "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_a_preset() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/presets");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let known: Vec<String> = PRESETS
            .iter()
            .map(|(name, _)| format!("{name}.yaml"))
            .collect();
        assert_eq!(files, known);
    }
}
