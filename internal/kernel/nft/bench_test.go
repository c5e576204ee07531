package nft

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkElements reads 50,000 elements with comments, like the frontends of 50,000 Services.
func BenchmarkElements(b *testing.B) {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		b.Fatal(err)
	}
	table := New("tested")
	defer table.Close()
	_, err := table.Load(b.Context(), &Ruleset{Source: first, Data: map[string]any{"Number": "0:1"}, DynamicChain: keep}, false)
	var ws []Write
	for i := range 50000 {
		ws = append(ws, number(i))
	}
	if err == nil {
		err = table.Commit(b.Context(), nil, ws)
	}
	for b.Loop() && err == nil {
		n := 0
		if err = table.Elements(b.Context(), "numbers", func(Element) error { n++; return nil }); n != len(ws) {
			b.Errorf("%d elements", n)
		}
	}
	if err != nil {
		b.Fatal(err)
	}
}
