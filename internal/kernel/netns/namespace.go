// Package netnamespace runs a function in a network namespace, and says which addresses one has.
//
// A namespace belongs to a thread, and goroutines share threads: the package hides how one is kept
// for the function, and brought back. It promises that no other goroutine ever runs on a thread
// that is in another namespace than the process.
package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"github.com/vishvananda/netns"
)

// Addrs returns the addresses of the interfaces of the thread's namespace, with their networks.
func Addrs() (own []netip.Prefix, err error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list this machine's addresses: %w", err)
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil { // else it is no IP address
			own = append(own, p)
		}
	}
	return own, nil
}

// Do runs f, in the caller's goroutine, on a thread that is in the namespace. Sockets opened and
// programs started by f stay in it; goroutines started by f do not begin there. f may end its goroutine.
func Do(ns netns.NsHandle, f func() error) (err error) {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer home.Close()
	if err := netns.Set(ns); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace: %w", err)
	}
	defer func() {
		// A thread that cannot return stays locked, and ends with its goroutine.
		if back := netns.Set(home); back != nil {
			err = errors.Join(err, fmt.Errorf("return to own network namespace: %w", back))
			return
		}
		runtime.UnlockOSThread()
	}()
	return f()
}
