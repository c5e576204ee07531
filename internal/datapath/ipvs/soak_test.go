//go:build uml

package ipvs_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// A soak changes Services at random while clients connect to some of them.
type soak struct {
	*rig
	*rand.Rand
	six  []service.Endpoint  // IPv6 endpoints
	all  []*service.Frontend // the clients' Services first; nil means none
	done map[string]int      // how often each change was made
}

// The number of Services that clients use, the last of them by IPv6, and the largest number of Services.
const (
	usedServices = 3
	mostServices = 40
)

var vip6 = netip.MustParseAddrPort("[fd00:10:96::1]:80")

// TestSoak changes Services, endpoints, schedulers and processes at random, for the time in FOR. No connection fails,
// new or old. In the end the kernel holds the wanted table, and its size has not grown since the first third.
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("FOR"))
	if err != nil {
		t.Fatal(err)
	}
	s := &soak{rig: newRig(t, open(t)), Rand: testnet.Random(t), all: make([]*service.Frontend, mostServices), done: map[string]int{}}
	t.Cleanup(func() { s.dp.Close() })
	client6 := s.addSix()
	s.change()
	start := time.Now()
	held := []*conn{s.dial(s.from(0), vip(0)), s.dial(s.from(1), vip(1))}
	var stops []func() (int, []testnet.Answer)
	for range 4 {
		stops = append(stops, s.client.KeepAsking(vip(0)), s.node.KeepAsking(vip(1)), client6.KeepAsking(vip6))
	}
	churn := func(part int) {
		for time.Since(start) < length*time.Duration(part)/3 {
			s.change()
			for _, c := range held {
				if at := s.ask(c); at != c.at {
					t.Errorf("a connection to %v is answered by %v", c.at, at)
				}
			}
		}
	}
	churn(1)
	before := s.measure()
	churn(3)
	after := s.measure()
	all := 0
	for _, stop := range stops {
		asked, failed := stop()
		all += asked
		for _, a := range failed {
			t.Errorf("a new connection: %v", a)
		}
	}
	t.Logf("%d new connections, %v\nbefore %+v\nafter  %+v", all, s.done, before, after)
	if after.servers != before.servers || after.rules != before.rules || after.heap > before.heap*3/2+1<<20 {
		t.Errorf("something has grown: before %+v, after %+v", before, after)
	}
}

// addSix adds endpoints with IPv6, and returns a client.
func (s *soak) addSix() *testnet.Host {
	other := s.net.Node("node-3")
	for i, on := range []*testnet.Host{s.node, other, other} {
		at := netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("fd00:10:244:2::%d", 5+i)), 8080)
		s.net.Pod(on, fmt.Sprintf("six-%d", i), at.Addr()).Serve("tcp", at)
		s.six = append(s.six, service.Endpoint{Addr: at, Local: on == s.node})
	}
	return s.net.Pod(s.node, "client-6", netip.MustParseAddr("fd00:10:244:1::100"))
}

// frontend returns a Service of the soak.
func (s *soak) frontend(i int, some func([]service.Endpoint) []service.Endpoint, a service.Algorithm) *service.Frontend {
	if i != usedServices-1 {
		return frontend(i, api.TCP, a, some(s.eps)...)
	}
	f := frontend(i, api.TCP, a, some(s.six)...)
	f.Addr = vip6
	return f
}

// every returns all endpoints.
func every(eps []service.Endpoint) []service.Endpoint { return eps }

// change makes a random change, and applies it to the kernel.
func (s *soak) change() {
	i := s.IntN(mostServices)
	if s.IntN(3) == 0 {
		i = s.IntN(usedServices)
	}
	what := "endpoints"
	switch n := s.IntN(100); {
	case n < 5:
		what = "process"
		s.dp.Close()
		s.dp = open(s.t)
	case i >= usedServices && n < 45:
		what, s.all[i] = "Service removed", nil
	default:
		f := s.frontend(i, s.some, []service.Algorithm{service.RoundRobin, service.LeastConn, service.SourceHash, service.Maglev}[s.IntN(4)])
		if i >= usedServices {
			f.Proto = []api.Proto{api.TCP, api.UDP}[i%2]
			f.Affinity = time.Duration(s.IntN(2)) * time.Hour
		}
		s.all[i] = f
	}
	s.done[what]++
	for i := range usedServices {
		if s.all[i] == nil {
			s.all[i] = s.frontend(i, every, service.RoundRobin)
		}
	}
	s.sync(s.present()...)
}

func (s *soak) present() (all []*service.Frontend) {
	for _, f := range s.all {
		if f != nil {
			all = append(all, f)
		}
	}
	return all
}

// some returns at least one of the endpoints.
func (s *soak) some(eps []service.Endpoint) (out []service.Endpoint) {
	for _, i := range s.Perm(len(eps))[:1+s.IntN(len(eps))] {
		out = append(out, eps[i])
	}
	return out
}

// A size has the values that must not grow.
type size struct{ heap, servers, rules int }

// measure deletes all Services except the clients', compares the kernel with the wanted table, and counts.
func (s *soak) measure() (out size) {
	clear(s.all)
	for i := range usedServices {
		s.all[i] = s.frontend(i, every, service.RoundRobin)
	}
	want := service.NewTable(service.Settings{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}, s.present())
	s.sync(s.present()...)
	s.check(true)
	other := open(s.t)
	defer other.Close()
	s.do(func() error {
		is, err := other.Adopt(s.t.Context())
		if err != nil {
			return err
		}
		if diff := service.Diff(is.Table, want); len(diff) > 0 {
			return fmt.Errorf("the kernel differs from what is wanted: %v", diff)
		}
		return nil
	})
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	out.heap = int(mem.HeapAlloc)
	for line := range strings.Lines(s.run("ipvsadm", "-Ln")) {
		if strings.HasPrefix(line, "TCP ") || strings.HasPrefix(line, "UDP ") {
			out.servers++
		}
	}
	out.rules = bytes.Count([]byte(s.run("nft", "list", "table", "inet", "fairway-ipvs")), []byte("\n"))
	return out
}
