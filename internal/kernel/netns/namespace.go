// Package netns runs a function in a network namespace, and lists the addresses of the present one.
//
//	Do(ns, f): lock the thread ─→ enter ns ─→ f ─→ return ─→ unlock
//
// A network namespace belongs to a thread, and goroutines share threads. The package promises that a thread in another
// namespace runs no other goroutine.
package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"github.com/vishvananda/netns"
)

// Addrs returns the addresses of all interfaces in the thread's namespace, with the lengths of their prefixes.
func Addrs() (own []netip.Prefix, err error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list this machine's addresses: %w", err)
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil { // an error means that a is no IP address
			own = append(own, p)
		}
	}
	return own, nil
}

// Do runs f in the caller's goroutine on a thread in the namespace. Sockets that f opens and programs that f starts
// belong to the namespace. Goroutines that f starts do not. f may end its goroutine (runtime.Goexit).
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
		// A thread that cannot return stays locked, so it ends with its goroutine.
		if back := netns.Set(home); back != nil {
			err = errors.Join(err, fmt.Errorf("return to own network namespace: %w", back))
			return
		}
		runtime.UnlockOSThread()
	}()
	return f()
}
