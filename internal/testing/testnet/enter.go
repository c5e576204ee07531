package testnet

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Enter gives the test's thread its own network namespace, without an interface that is up. The namespace ends with the
// thread. Goroutines and subtests of the test are not in it.
func Enter(t testing.TB) {
	t.Helper()
	NeedRoot(t, "makes network namespaces")
	runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace: %v [run the tests as root]", err)
	}
}
