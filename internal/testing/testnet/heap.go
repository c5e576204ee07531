package testnet

import (
	"runtime"
	"testing"
)

// HeapAtMost measures what make returns in the heap, all that is garbage left out, for each of n objects
// that it holds, and fails if that is more than limit bytes.
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

// liveHeap returns how many bytes are in use.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // what the first has found a finalizer for
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
