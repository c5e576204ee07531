package testnet

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Enter gives the test's thread a network namespace of its own, without any interface up, which
// ends with the thread. The goroutines that the test starts are not in it, nor are subtests.
func Enter(t testing.TB) {
	t.Helper()
	NeedRoot(t, "makes network namespaces")
	runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace: %v [run the tests as root]", err)
	}
}
