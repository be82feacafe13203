//! Loop devices: a file as a block device.

use std::ffi::{c_int, c_ulong};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::fstat;

const CTL_GET_FREE: c_ulong = 0x4c82;
const SET_CAPACITY: c_ulong = 0x4c07;
const GET_STATUS64: c_ulong = 0x4c05;
const CONFIGURE: c_ulong = 0x4c0a;

/// The device releases its file when the last user (including a mount) is gone.
const FLAG_AUTOCLEAR: u32 = 4;
/// Bypasses the page cache of the file's own file system, which would hold everything twice.
const FLAG_DIRECT_IO: u32 = 16;
const BLOCK_BYTES: u32 = 4096;
/// Attempts to get a free device: another process may take the one that the kernel reported as free.
const ATTEMPTS: usize = 32;

#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = {
    assert!(size_of::<Info>() == 232);
    assert!(size_of::<Config>() == 304);
};

const EMPTY: Info = Info {
    device: 0,
    inode: 0,
    rdevice: 0,
    offset: 0,
    size_limit: 0,
    number: 0,
    encrypt_type: 0,
    encrypt_key_size: 0,
    flags: 0,
    file_name: [0; 64],
    crypt_name: [0; 64],
    encrypt_key: [0; 32],
    init: [0; 2],
};

/// An attached device. The file stays attached while this or a mount holds the device open.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    device: File,
}

impl LoopDevice {
    /// The device that already holds `image`, attached by any process and under any path.
    pub fn find(image: &File) -> io::Result<Option<Self>> {
        let wanted = fstat(image)?;
        for entry in fs::read_dir("/sys/block")? {
            let entry = entry?;
            if !entry.path().join("loop/backing_file").exists() {
                continue;
            }
            let path = Path::new("/dev").join(entry.file_name());
            let Ok(device) = open(&path) else { continue };
            let mut info = EMPTY;
            // SAFETY: the argument is a live `loop_info64` for the kernel to fill.
            let got = unsafe { libc::ioctl(device.as_raw_fd(), GET_STATUS64, &raw mut info) };
            if got == 0 && info.device == wanted.st_dev && info.inode == wanted.st_ino {
                return Ok(Some(Self { path, device }));
            }
        }
        Ok(None)
    }

    /// Attaches `image`, opened for reading and writing, to a free device.
    ///
    /// # Errors
    /// `EBUSY` if other processes took every free device first.
    pub fn attach(image: &File) -> io::Result<Self> {
        let controller = open(Path::new("/dev/loop-control"))?;
        for _ in 0..ATTEMPTS {
            // SAFETY: the request takes no argument.
            let number = unsafe { libc::ioctl(controller.as_raw_fd(), CTL_GET_FREE) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = open(&path)?;
            let config = Config {
                fd: u32::try_from(image.as_raw_fd()).expect("an open descriptor is not negative"),
                block_size: BLOCK_BYTES,
                info: Info { flags: FLAG_AUTOCLEAR | FLAG_DIRECT_IO, ..EMPTY },
                reserved: [0; 8],
            };
            // SAFETY: the argument is a live `loop_config`, and the image's descriptor in it is open for the call.
            if unsafe { libc::ioctl(device.as_raw_fd(), CONFIGURE, &raw const config) } == 0 {
                return Ok(Self { path, device });
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EBUSY) {
                return Err(error);
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// The device at this path.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), device: open(path)? })
    }

    /// Whether it holds this very file, under any path.
    pub fn holds(&self, image: &File) -> io::Result<bool> {
        let wanted = fstat(image)?;
        let mut info = EMPTY;
        // SAFETY: the argument is a live `loop_info64` for the kernel to fill.
        if unsafe { libc::ioctl(self.device.as_raw_fd(), GET_STATUS64, &raw mut info) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(info.device == wanted.st_dev && info.inode == wanted.st_ino)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Updates the device's size after its file has grown.
    pub fn refresh_capacity(&self) -> io::Result<()> {
        // SAFETY: the request takes no argument.
        if unsafe { libc::ioctl(self.device.as_raw_fd(), SET_CAPACITY) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Makes the file system write this file in place instead of copying on write (`chattr +C`), which suits a btrfs that holds
/// another file system's image. Best on an empty file.
pub fn disable_copy_on_write(file: BorrowedFd<'_>) -> io::Result<()> {
    const NO_COW: c_int = 0x0080_0000;
    let mut flags: c_int = 0;
    // SAFETY: the kernel reads and writes an int here, whatever the request's number says of a long.
    unsafe {
        if libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags) < 0 {
            return Err(io::Error::last_os_error());
        }
        flags |= NO_COW;
        if libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &raw const flags) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
