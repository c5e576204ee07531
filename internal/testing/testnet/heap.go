package testnet

import (
	"runtime"
	"testing"
)

// HeapAtMost fails the test if the result of make takes more than limit bytes of the heap for each of its n objects.
// Garbage does not count.
func HeapAtMost(t *testing.T, n, limit int, make func() any) {
	t.Helper()
	before := liveHeap()
	used := make()
	each := (int(liveHeap()) - int(before)) / n
	runtime.KeepAlive(used)
	if t.Logf("%d bytes each, at most %d", each, limit); each > limit {
		t.Errorf("each of %d takes %d bytes in memory, and may take %d: a node has 50,000 of them "+
			"[make the new fields smaller, or raise the bound with the reason and measure docs/performance.md anew]", n, each, limit)
	}
}

// liveHeap returns the number of bytes in use.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // frees the objects whose finalizers the first run called
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
