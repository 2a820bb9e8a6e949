//! The simulator as a platform: five devices that are always there.

use std::sync::Arc;

use periscope_hal::{Device, DeviceUri, OpenError, Platform};

use crate::device::SimDevice;
use crate::profile::Profile;
use crate::settings::SimSettings;

/// The simulator. Every device it opens has the same settings.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimPlatform {
    settings: SimSettings,
}

impl SimPlatform {
    /// A simulator whose devices have these settings.
    #[must_use]
    pub fn new(settings: SimSettings) -> SimPlatform {
        SimPlatform { settings }
    }
}

impl Platform for SimPlatform {
    fn scheme(&self) -> &'static str {
        "sim"
    }

    fn devices(&self) -> Vec<(DeviceUri, String)> {
        Profile::ALL.into_iter().map(|profile| (profile.uri(), profile.description().into())).collect()
    }

    fn open(&self, uri: &DeviceUri) -> Result<Arc<dyn Device>, OpenError> {
        let profile = Profile::of_uri(uri).ok_or_else(|| OpenError::UnknownDevice {
            uri: uri.to_string(),
            known: Profile::ALL.map(|profile| profile.to_string()).into(),
        })?;
        Ok(Arc::new(SimDevice::open(profile, self.settings)?))
    }
}
