//! Limits of the process that leave no room for the region; each is reported by its own error.

use std::sync::Arc;

use hiroba_memory::{
    FaultHandler, FaultOutcome, FaultSourceKind, MemoryConfig, MemoryError, SharedMemory, WriteTracking, open,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::common::{Ending, isolated};

fn limit(resource: Resource, current: u64) {
    setrlimit(resource, Rlimit { current: Some(current), maximum: getrlimit(resource).maximum }).unwrap();
}

#[test]
fn address_space() {
    isolated(concat!(module_path!(), "::address_space"), Ending::Success, || {
        limit(Resource::As, 1 << 40);
        let error = SharedMemory::reserve(MemoryConfig::default()).unwrap_err();
        let MemoryError::AddressSpaceLimit { needed_bytes, limit_bytes } = error else { panic!("{error}") };
        assert!(needed_bytes > 32 << 40 && limit_bytes == 1 << 40, "{error}");
        assert!(error.to_string().contains("ulimit -v"), "{error}");
        // A smaller region that fits is still reserved.
        SharedMemory::reserve(MemoryConfig { region_bytes: 1 << 30, ..MemoryConfig::default() }).unwrap();
    });
}

#[test]
fn file_size() {
    isolated(concat!(module_path!(), "::file_size"), Ending::Success, || {
        limit(Resource::Fsize, 1 << 20);
        let error = SharedMemory::reserve(MemoryConfig::default()).unwrap_err();
        assert_eq!(error, MemoryError::FileSizeLimit { needed_bytes: 16 << 40, limit_bytes: 1 << 20 });
    });
}

struct NoFaults;

impl FaultHandler for NoFaults {
    fn handle_fault(&self, _: hiroba_memory::Fault) -> FaultOutcome {
        FaultOutcome::NotOurs
    }
}

#[test]
fn descriptors() {
    isolated(concat!(module_path!(), "::descriptors"), Ending::Success, || {
        let config = MemoryConfig { region_bytes: 1 << 30, ..MemoryConfig::default() };
        let memory = Arc::new(SharedMemory::reserve(config).unwrap());
        limit(Resource::Nofile, 0);
        let elsewhere = MemoryConfig { region_start: config.region_start + (1 << 30), ..config };
        let error = SharedMemory::reserve(elsewhere).unwrap_err();
        assert!(matches!(error, MemoryError::NoDescriptor { .. }), "{error}");
        for kind in [FaultSourceKind::Event, FaultSourceKind::Sigbus] {
            for tracking in WriteTracking::ALL {
                let error = open(kind, tracking, memory.clone(), Arc::new(NoFaults)).err().unwrap();
                // Or it was refused for another reason first.
                assert!(
                    matches!(
                        error,
                        MemoryError::NoDescriptor { .. }
                            | MemoryError::UserfaultfdRefused { .. }
                            | MemoryError::NoUserfaultfd
                    ),
                    "{error}"
                );
            }
        }
        assert!(open(FaultSourceKind::Sigsegv, WriteTracking::Fault, memory, Arc::new(NoFaults)).is_ok());
    });
}
