package twonodes

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// asAgent runs f with the effective capabilities of an agent in deploy/. Only the calling thread loses the others, and gets
// them back.
func asAgent(f func() error) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all [2]unix.CapUserData
	if err := unix.Capget(&header, &all[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	few := all
	few[0].Effective, few[1].Effective = all[0].Effective&(1<<unix.CAP_NET_ADMIN|1<<unix.CAP_NET_RAW), 0
	if err := unix.Capset(&header, &few[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	err := f()
	return errors.Join(err, unix.Capset(&header, &all[0]))
}
