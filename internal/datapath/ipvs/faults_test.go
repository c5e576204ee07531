//go:build uml

package ipvs_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/conformance"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// The tests in this file change state of the whole kernel. They run for every mode that user-mode Linux supports.
var everyMode = map[string]conformance.Open{
	"ipvs": open, "userspace": openUserspace, "nftables": func(t testing.TB) conformance.Datapath {
		dp, err := nftables.New(nftables.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return dp
	},
}

// jump sets the kernel's clock.
func jump(t *testing.T, by time.Duration) {
	t.Helper()
	tv := unix.NsecToTimeval(time.Now().Add(by).Round(0).UnixNano())
	if err := unix.Settimeofday(&tv); err != nil {
		t.Fatal(err)
	}
}

// TestClock: the clock jumps an hour forward and back. Connections stay, and Check finds no difference. A client keeps
// its endpoint, also over a restart, for exactly its affinity time.
func TestClock(t *testing.T) {
	for mode, open := range everyMode {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, open(t))
			f := frontend(0, api.TCP, service.RoundRobin, r.eps...)
			f.Affinity = 30 * time.Minute
			r.sync(f)
			held := r.dial(r.from(0), vip(0))
			for _, by := range []time.Duration{time.Hour, -2 * time.Hour, time.Hour} {
				jump(t, by)
				r.check(true)
				if mode != datapath.Userspace { // mode userspace carries connections itself
					if at := r.ask(held); at != held.at {
						t.Errorf("after %v the connection is answered by %v, was at %v", by, at, held.at)
					}
				}
				for _, restart := range []bool{false, true} {
					if restart {
						r.dp.Close()
						r.dp = open(t)
						t.Cleanup(r.dp.Close)
						r.sync(f)
					}
					c := r.dial(r.from(0), vip(0))
					if c.at != held.at {
						t.Errorf("after %v, restart %v: the client is at %v, was at %v", by, restart, c.at, held.at)
					}
					r.end(c)
				}
			}
		})
	}
}

// TestConntrackFull: with a full table, new connections are dropped, established ones continue and Services can change.
// As soon as there is room, new connections are served.
func TestConntrackFull(t *testing.T) {
	const file = "/proc/sys/net/netfilter/nf_conntrack_max"
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	set := func(n string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(n), 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { set(strings.TrimSpace(string(was))) })
	for mode, open := range everyMode {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, open(t))
			r.sync(frontend(0, api.TCP, 0, r.eps...))
			held := r.dial(r.from(0), vip(0))
			set("1") // the smallest table, in which no entry has room
			if got := r.client.Ask("tcp", vip(0), time.Second); got.Outcome == testnet.Answered {
				t.Errorf("the table is not full: %v", got)
			}
			for range 3 {
				if at := r.ask(held); at != held.at {
					t.Errorf("the connection is answered by %v, was at %v", at, held.at)
				}
			}
			r.sync(frontend(0, api.TCP, 0, r.eps...), frontend(1, api.TCP, 0, r.eps[0]))
			r.check(true)
			set(strings.TrimSpace(string(was)))
			for i := range 2 {
				if got := r.client.Ask("tcp", vip(i), patience); got.Outcome != testnet.Answered {
					t.Errorf("with room again: %v", got)
				}
			}
			if at := r.ask(held); at != held.at {
				t.Errorf("the connection is answered by %v, was at %v", at, held.at)
			}
		})
	}
}
