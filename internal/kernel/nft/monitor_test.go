package nft

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	handle "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/netns"
)

// monitored runs a Monitor in the thread's namespace. It returns when the Monitor listens.
func monitored(t testing.TB, m *Monitor) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	ready := m.Changed("ready")
	ns, err := handle.Get()
	if err != nil {
		t.Fatal(err)
	}
	go func() { done <- netns.Do(ns, func() error { return m.Run(ctx) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the Monitor ended: %v", err)
		}
		_ = ns.Close()
	})
	<-ready
}

// hinted reports whether a hint comes within the time.
func hinted(hint <-chan struct{}, within time.Duration) bool {
	select {
	case <-hint:
		return true
	case <-time.After(within):
		return false
	}
}

// quiet is the time without a hint that counts as none. It is longer than the pause of the Monitor.
const quiet = 4 * monitorPause

// TestMonitor: owners hear of the changes that other programs make to their tables, and of no others.
func TestMonitor(t *testing.T) {
	table, _ := open(t)
	var m Monitor
	hint, others := m.Changed("tested", "absent"), m.Changed("other")
	monitored(t, &m)
	_, _ = <-hint, <-others // of the start
	for _, c := range []struct {
		what   string
		change func()
		want   bool
	}{
		{"our own elements", func() { must(t, table.Commit(t.Context(), nil, []Write{number(1), number(2)})) }, false},
		{"a foreign table", func() { foreign(t, "add table inet foreign\nadd chain inet foreign c\n") }, false},
		{"a foreign element", func() { foreign(t, "add element inet tested old { 10.0.0.1 }\n") }, true},
		{"a foreign rule", func() { foreign(t, "insert rule inet tested input accept\n") }, true},
		{"a deleted element", func() { foreign(t, "delete element inet tested old { 10.0.0.1 }\n") }, true},
		{"a flush of the table", func() { foreign(t, "flush table inet tested\n") }, true},
		{"a flush of everything", func() { foreign(t, "flush ruleset\n") }, true},
	} {
		c.change()
		within := quiet
		if c.want {
			within = 20 * time.Second
		}
		if got := hinted(hint, within); got != c.want {
			t.Errorf("%s: hint %v, want %v", c.what, got, c.want)
		}
		for hinted(hint, 0) {
		}
	}
	if hinted(others, 0) {
		t.Error("the owner of another table got a hint")
	}
}

// TestMonitorOverflow: notifications that the socket has lost count as changes of all tables, unless this process made
// all transactions.
func TestMonitorOverflow(t *testing.T) {
	table, _ := open(t)
	var m Monitor
	hint := m.Changed("tested")
	monitored(t, &m)
	<-hint // of the start
	var ws []Write
	for i := range 50_000 {
		ws = append(ws, number(i))
	}
	must(t, table.Commit(t.Context(), nil, ws))
	if hinted(hint, quiet) {
		t.Error("a hint of our own commit")
	}
	text := "add table inet foreign\nadd set inet foreign many { type ipv4_addr; }\n"
	for range 3 {
		text += "add element inet foreign many { " + manyAddrs(20_000) + " }\nflush set inet foreign many\n"
	}
	foreign(t, text+"flush table inet tested\n")
	if !hinted(hint, 20*time.Second) {
		t.Error("no hint of a change in a transaction with more notifications than the socket holds")
	}
}

func manyAddrs(n int) string {
	var all []byte
	for i := range n {
		all = fmt.Appendf(all, "%d.%d.%d.1, ", 11+i>>16, i>>8&0xff, i&0xff)
	}
	return string(all)
}

// BenchmarkMonitored commits elements with and without a Monitor.
func BenchmarkMonitored(b *testing.B) {
	for _, size := range []int{1, 50_000} {
		for _, with := range []bool{false, true} {
			b.Run(fmt.Sprintf("elements=%d/monitor=%v", size, with), func(b *testing.B) {
				runtime.LockOSThread()
				if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
					b.Fatal(err)
				}
				table := New("tested")
				defer table.Close()
				if _, err := table.Load(b.Context(), &Ruleset{Source: first, Data: map[string]any{"Number": "0:1"}, DynamicChain: keep}, false); err != nil {
					b.Fatal(err)
				}
				if with {
					var m Monitor
					m.Changed("tested")
					monitored(b, &m)
				}
				var add, del []Write
				for i := range size {
					w := number(i)
					add = append(add, w)
					w.Add, w.Del = false, true
					del = append(del, w)
				}
				for b.Loop() {
					for _, ws := range [][]Write{add, del} {
						if err := table.Commit(b.Context(), nil, ws); err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		}
	}
}
