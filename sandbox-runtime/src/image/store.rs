//! The image store: content-addressed files, and one manifest per source that says which is its.
//!
//! A file appears under its name only when it is whole (written aside, synced, renamed), and a lock
//! per source lets two builds at once become one. What an interrupted build left is removed by the
//! next one. Opening checks size and superblock; [`ImageStore::verify`] hashes the whole file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::RuntimeError;
use crate::fingerprint::{Fingerprint, hex};
use crate::image::build::build;
use crate::image::{Image, ImageFormat, ImageSource};
use crate::paths::{Paths, private_dir};
use crate::progress::Progress;

const STEP: &str = "image";

/// What a build needs at least, bytes: the tree and the file beside each other.
const BUILD_SPACE: u64 = 1 << 30;

/// The images in one cache.
#[derive(Clone, Debug)]
pub struct ImageStore {
    root: PathBuf,
}

/// What is recorded of a source.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    source: String,
    path: PathBuf,
    digest: String,
    size: u64,
    format: ImageFormat,
    /// Identity of a file that isn't ours when it was hashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
}

impl ImageStore {
    /// The store in the cache of `paths`.
    pub fn new(paths: &Paths) -> Self {
        Self {
            root: paths.images(),
        }
    }

    /// The image of `source`. Builds it when it is absent or damaged, which blocks for minutes;
    /// a directory is packed again every time, since nothing says cheaply whether it changed.
    ///
    /// # Errors
    /// [`RuntimeError::Image`] when there is no image to be had from `source`,
    /// [`RuntimeError::Environment`] and [`RuntimeError::File`] when the machine is at fault.
    pub fn ensure(&self, source: &ImageSource, progress: &Progress) -> Result<Image, RuntimeError> {
        match source {
            ImageSource::File(path) => self.adopt(source, path, progress),
            ImageSource::Directory(_) => self.rebuild(source, progress),
            ImageSource::DebianPackages { .. } => match self.cached(source) {
                Some(image) => Ok(image),
                None => self.build(source, progress, false),
            },
        }
    }

    /// Builds the image of `source` anew, with the newest packages.
    ///
    /// # Errors
    /// As [`Self::ensure`].
    pub fn rebuild(
        &self,
        source: &ImageSource,
        progress: &Progress,
    ) -> Result<Image, RuntimeError> {
        match source {
            ImageSource::File(path) => self.adopt(source, path, progress),
            _ => self.build(source, progress, true),
        }
    }

    /// Every image that the store knows, by source.
    ///
    /// # Errors
    /// [`RuntimeError::File`] when the store can't be read.
    pub fn list(&self) -> Result<Vec<Image>, RuntimeError> {
        let mut images: Vec<Image> = self
            .manifests()?
            .into_iter()
            .map(|(_, manifest)| manifest.into())
            .collect();
        images.sort_by(|one, other| one.source.cmp(&other.source));
        Ok(images)
    }

    /// Hashes the whole file.
    ///
    /// # Errors
    /// [`RuntimeError::Image`] when it isn't what was recorded.
    pub fn verify(&self, image: &Image) -> Result<(), RuntimeError> {
        if hash(&image.path)? == image.digest {
            return Ok(());
        }
        Err(RuntimeError::image(
            format!("`{}` is not what was built", image.path.display()),
            format!(
                "run `outgate image rm {0}`, then `outgate image build {0}`",
                image.source
            ),
        ))
    }

    /// Forgets an image, named by its source or the beginning of its digest, and removes its file
    /// when no other source has the same. A running sandbox keeps the file open.
    ///
    /// # Errors
    /// [`RuntimeError::Image`] when the name fits none or several images.
    pub fn remove(&self, name: &str) -> Result<Image, RuntimeError> {
        let all = self.manifests()?;
        let fits = |manifest: &Manifest| {
            manifest.source == name || (name.len() >= 6 && manifest.digest.starts_with(name))
        };
        let mut fitting = all.iter().filter(|(_, manifest)| fits(manifest));
        let (Some((path, manifest)), None) = (fitting.next(), fitting.next()) else {
            return Err(RuntimeError::image(
                format!("`{name}` does not name one image"),
                "see `outgate image ls`, and give the source or at least 6 digits of the digest",
            ));
        };
        remove_file(path)?;
        let shared = all
            .iter()
            .filter(|(_, other)| other.path == manifest.path)
            .count()
            > 1;
        if !shared && manifest.path.starts_with(&self.root) {
            remove_file(&manifest.path)?;
        }
        Ok(self.read_image(manifest))
    }

    fn cached(&self, source: &ImageSource) -> Option<Image> {
        let manifest = read_manifest(&self.manifest_path(source))?;
        let problem = check(&manifest.path, Some(manifest.size)).err();
        if let Some(problem) = problem {
            tracing::warn!(%problem, "a cached image is damaged and is built again");
            return None;
        }
        Some(manifest.into())
    }

    fn build(
        &self,
        source: &ImageSource,
        progress: &Progress,
        anew: bool,
    ) -> Result<Image, RuntimeError> {
        private_dir(&self.root)?;
        let _lock = self.lock(source, progress)?;
        // Whoever held the lock may have built it meanwhile.
        if !anew && let Some(image) = self.cached(source) {
            return Ok(image);
        }
        self.check_space()?;
        let scratch = self.root.join(format!(".building-{}", key_of(source)));
        remove_folder(&scratch)?;
        private_dir(&scratch)?;
        let fresh = scratch.join("image");
        let built = build(source, &scratch, &fresh, progress)
            .and_then(|()| self.keep(source, &fresh, progress));
        remove_folder(&scratch)?;
        built
    }

    /// Moves a finished file to its name and records it.
    fn keep(
        &self,
        source: &ImageSource,
        fresh: &Path,
        progress: &Progress,
    ) -> Result<Image, RuntimeError> {
        progress.step(STEP, "hash");
        let (size, format) = check(fresh, None)?;
        let digest = hash(fresh)?;
        let path = self.root.join(format!("{digest}.{format}"));
        let problem = |error| RuntimeError::file("keep", &path, error);
        let file = File::open(fresh).map_err(problem)?;
        file.set_permissions(fs::Permissions::from_mode(0o644))
            .map_err(problem)?;
        file.sync_all().map_err(problem)?;
        fs::rename(fresh, &path).map_err(problem)?;
        let source = source.to_string();
        self.record(Manifest {
            source,
            path,
            digest,
            size,
            format,
            fingerprint: None,
        })
    }

    /// Takes a file of somebody else's as it is. It is hashed once and again when it was replaced.
    fn adopt(
        &self,
        source: &ImageSource,
        path: &Path,
        progress: &Progress,
    ) -> Result<Image, RuntimeError> {
        let (size, format) = check(path, None)?;
        let mut fingerprint = Fingerprint::default();
        fingerprint.add_file(path)?;
        let fingerprint = Some(fingerprint.finish());
        let known = read_manifest(&self.manifest_path(source));
        if let Some(manifest) = known.filter(|manifest| manifest.fingerprint == fingerprint) {
            return Ok(manifest.into());
        }
        progress.step(STEP, format!("hash {}", path.display()));
        private_dir(&self.root)?;
        let (source, path, digest) = (source.to_string(), path.to_owned(), hash(path)?);
        self.record(Manifest {
            source,
            path,
            digest,
            size,
            format,
            fingerprint,
        })
    }

    fn record(&self, manifest: Manifest) -> Result<Image, RuntimeError> {
        let path = self.root.join(format!("{}.json", key(&manifest.source)));
        let problem = |error| RuntimeError::file("write", &path, error);
        let mut file = tempfile::NamedTempFile::new_in(&self.root).map_err(problem)?;
        serde_json::to_writer_pretty(&mut file, &manifest).map_err(|e| problem(e.into()))?;
        file.as_file().sync_all().map_err(problem)?;
        file.persist(&path).map_err(|error| problem(error.error))?;
        Ok(manifest.into())
    }

    fn manifests(&self) -> Result<Vec<(PathBuf, Manifest)>, RuntimeError> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            result => result.map_err(|error| RuntimeError::file("read", &self.root, error))?,
        };
        Ok(entries
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "json")
            })
            .filter_map(|path| read_manifest(&path).map(|manifest| (path, manifest)))
            .collect())
    }

    fn read_image(&self, manifest: &Manifest) -> Image {
        let Manifest {
            source,
            path,
            digest,
            size,
            format,
            ..
        } = manifest;
        Image {
            source: source.clone(),
            path: path.clone(),
            digest: digest.clone(),
            size: *size,
            format: *format,
        }
    }

    fn manifest_path(&self, source: &ImageSource) -> PathBuf {
        self.root.join(format!("{}.json", key_of(source)))
    }

    fn lock(&self, source: &ImageSource, progress: &Progress) -> Result<File, RuntimeError> {
        let path = self.root.join(format!("{}.lock", key_of(source)));
        let problem = |error: io::Error| RuntimeError::file("lock", &path, error);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(problem)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                progress.step(STEP, "wait for another build of the same image");
                rustix::fs::flock(&file, FlockOperation::LockExclusive)
            }
            result => result,
        }
        .map_err(|error| problem(error.into()))?;
        Ok(file)
    }

    fn check_space(&self) -> Result<(), RuntimeError> {
        let space = rustix::fs::statvfs(&self.root)
            .map_err(|error| RuntimeError::file("look at", &self.root, error.into()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free >= BUILD_SPACE {
            return Ok(());
        }
        Err(RuntimeError::image(
            format!("{} MiB are free in `{}`", free >> 20, self.root.display()),
            "a build needs 1 GiB: free some space, or point OUTGATE_CACHE at a larger disk",
        ))
    }
}

impl From<Manifest> for Image {
    fn from(manifest: Manifest) -> Self {
        let Manifest {
            source,
            path,
            digest,
            size,
            format,
            ..
        } = manifest;
        Self {
            source,
            path,
            digest,
            size,
            format,
        }
    }
}

/// The cheap check: the file is there, has the recorded size, and begins as an image does.
fn check(path: &Path, size: Option<u64>) -> Result<(u64, ImageFormat), RuntimeError> {
    let unreadable = |error: io::Error| {
        RuntimeError::image(
            format!("`{}` can't be read: {error}", path.display()),
            "check the path and its permissions",
        )
    };
    let file = File::open(path).map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?.size();
    if size.is_some_and(|size| size != found) {
        return Err(RuntimeError::image(
            format!(
                "`{}` has {found} bytes and should have {size:?}",
                path.display()
            ),
            "build it again",
        ));
    }
    let format = ImageFormat::detect(&file)
        .map_err(unreadable)?
        .ok_or_else(|| {
            RuntimeError::image(
                format!(
                    "`{}` is no EROFS, SquashFS or ext4 file system",
                    path.display()
                ),
                "give an image of one of these, or a directory",
            )
        })?;
    Ok((found, format))
}

fn hash(path: &Path) -> Result<String, RuntimeError> {
    let problem = |error| RuntimeError::file("read", path, error);
    let mut file = File::open(path).map_err(problem)?;
    let mut digest = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        let length = file.read(&mut chunk).map_err(problem)?;
        if length == 0 {
            return Ok(hex(&digest.finalize()));
        }
        digest.update(chunk.get(..length).unwrap_or_default());
    }
}

fn key_of(source: &ImageSource) -> String {
    key(&source.to_string())
}

fn key(source: &str) -> String {
    let mut key = hex(&Sha256::digest(source));
    key.truncate(16);
    key
}

/// A manifest that is absent or not understood is the same: there is no image yet.
fn read_manifest(path: &Path) -> Option<Manifest> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn remove_file(path: &Path) -> Result<(), RuntimeError> {
    gone(fs::remove_file(path)).map_err(|error| RuntimeError::file("remove", path, error))
}

fn remove_folder(path: &Path) -> Result<(), RuntimeError> {
    gone(fs::remove_dir_all(path)).map_err(|error| RuntimeError::file("remove", path, error))
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Lab {
        _cache: tempfile::TempDir,
        store: ImageStore,
        image: PathBuf,
    }

    impl Lab {
        fn new() -> Self {
            let cache = tempfile::tempdir().unwrap();
            let paths = Paths::new(cache.path(), cache.path().join("run"));
            let store = ImageStore::new(&paths);
            private_dir(&store.root).unwrap();
            let image = cache.path().join("some.squashfs");
            fs::write(&image, b"hsqs and more").unwrap();
            Self {
                _cache: cache,
                store,
                image,
            }
        }

        fn keep(&self, source: &ImageSource) -> Image {
            let fresh = self.store.root.join("fresh");
            fs::copy(&self.image, &fresh).unwrap();
            self.store
                .keep(source, &fresh, &Progress::silent())
                .unwrap()
        }
    }

    #[test]
    fn a_damaged_image_is_not_used() {
        let lab = Lab::new();
        let source = ImageSource::default();
        let image = lab.keep(&source);
        assert_eq!(lab.store.cached(&source), Some(image.clone()));
        fs::write(&image.path, b"hsqs").unwrap();
        assert_eq!(lab.store.cached(&source), None, "shorter");
        fs::write(&image.path, b"xxxx and more").unwrap();
        assert_eq!(lab.store.cached(&source), None, "another superblock");
        fs::remove_file(&image.path).unwrap();
        assert_eq!(lab.store.cached(&source), None, "gone");
    }

    #[test]
    fn verify_finds_one_changed_byte() {
        let lab = Lab::new();
        let image = lab.keep(&ImageSource::default());
        lab.store.verify(&image).unwrap();
        fs::write(&image.path, b"hsqs and mOre").unwrap();
        let error = lab.store.verify(&image).unwrap_err();
        assert_eq!(error.class(), crate::ErrorClass::Image);
        assert!(
            error
                .to_string()
                .contains("outgate image rm debian:bookworm"),
            "{error}"
        );
    }

    #[test]
    fn a_half_written_manifest_is_no_image() {
        let lab = Lab::new();
        let source = ImageSource::default();
        lab.keep(&source);
        fs::write(lab.store.manifest_path(&source), b"{\"source\":").unwrap();
        assert_eq!(lab.store.cached(&source), None);
        assert_eq!(lab.store.list().unwrap(), []);
    }

    #[test]
    fn a_file_is_hashed_again_when_it_was_replaced() {
        let lab = Lab::new();
        let source = ImageSource::File(lab.image.clone());
        let first = lab.store.ensure(&source, &Progress::silent()).unwrap();
        assert_eq!(first.path(), lab.image);
        fs::write(&lab.image, b"hsqs and other").unwrap();
        let second = lab.store.ensure(&source, &Progress::silent()).unwrap();
        assert_ne!(first.digest(), second.digest());
    }

    #[test]
    fn a_foreign_file_is_refused_with_advice() {
        let lab = Lab::new();
        fs::write(&lab.image, b"#!/bin/sh").unwrap();
        let error = lab
            .store
            .ensure(&ImageSource::File(lab.image.clone()), &Progress::silent())
            .unwrap_err();
        assert!(
            error.to_string().contains("is no EROFS, SquashFS or ext4"),
            "{error}"
        );
    }

    #[test]
    fn removing_keeps_a_file_that_another_source_shares() {
        let lab = Lab::new();
        let other: ImageSource = "debian:bookworm+jq".parse().unwrap();
        let image = lab.keep(&ImageSource::default());
        assert_eq!(lab.keep(&other).path, image.path);
        lab.store.remove("debian:bookworm").unwrap();
        assert!(image.path.exists());
        lab.store.remove(&image.digest[..12]).unwrap();
        assert!(!image.path.exists());
        assert!(lab.store.remove("debian:bookworm").is_err());
    }
}
