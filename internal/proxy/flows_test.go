package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// holding is a datapath of which only Adopt is asked.
type holding struct {
	datapath.Datapath
	table *service.Table
	err   error
}

func (h holding) Adopt(context.Context) (datapath.Adopted, error) {
	return datapath.Adopted{Table: h.table, Found: true}, h.err
}

// walks is a flows whose Forget and Review are the test's, with a clock of its own.
type walks struct {
	flows
	now     time.Time
	takes   time.Duration // each walk
	fails   error
	forgot  []string // by the last walk, sorted
	walked  int
	reviews int
}

func newWalks(held *service.Table, err error) *walks {
	w := &walks{now: time.Unix(1_000_000, 0), takes: time.Millisecond}
	walk := func() error { w.now = w.now.Add(w.takes); return w.fails }
	w.flows = flows{
		stale: map[flowKey]service.Flow{}, clock: func() time.Time { return w.now },
		cfg: Config{
			Log: slog.New(slog.DiscardHandler), Datapath: holding{table: held, err: err},
			Metrics: NewMetrics(MetricsConfig{Registry: prometheus.NewRegistry(), Mode: "nftables"}),
			Forget: func(_ context.Context, all []service.Flow) (int, error) {
				w.walked++
				w.forgot = nil
				for _, f := range all {
					w.forgot = append(w.forgot, fmt.Sprintf("%v/%v>%v", f.Frontend, f.Proto, f.Endpoint))
				}
				slices.Sort(w.forgot)
				return len(all), walk()
			},
			Review: func(context.Context, *service.Table) (int, error) { w.reviews++; return 0, walk() },
		},
	}
	return w
}

// table has one UDP Service with the given endpoints.
func table(last ...byte) *service.Table {
	name := service.Name{Namespace: "ns", Name: "dns"}
	slice := &service.Slice{Name: name, Service: name, Ports: []service.SlicePort{{Proto: service.UDP, Port: 5353}}}
	for _, b := range last {
		slice.Endpoints = append(slice.Endpoints, service.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 1, b}), Ready: true, Serving: true})
	}
	b := service.NewBuilder()
	b.Set(service.Compile(&service.Service{
		Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Ports: []service.Port{{Proto: service.UDP, Port: 53}},
	}, []*service.Slice{slice}, service.Node{Name: "n"}))
	return b.Table(service.Settings{})
}

// pass is one pass of the loop, whose Sync succeeds or not.
func (w *walks) pass(t *testing.T, table *service.Table, succeeds bool) time.Duration {
	t.Helper()
	w.wanted(t.Context(), table)
	w.synced = succeeds
	return w.end(t.Context())
}

func (w *walks) expect(t *testing.T, when string, walked int, forgot ...string) {
	t.Helper()
	if w.walked != walked || !slices.Equal(w.forgot, forgot) {
		t.Errorf("%s: walked %d times, forgot %v; want %d, %v", when, w.walked, w.forgot, walked, forgot)
	}
}

const (
	to1          = "10.96.0.10:53/UDP>10.244.1.1:5353"
	to2          = "10.96.0.10:53/UDP>10.244.1.2:5353"
	untranslated = "10.96.0.10:53/UDP>invalid AddrPort"
)

// TestFlowsOfFailedPasses: what a pass that failed may have written makes flows that the
// next one must end; what is right again is not ended.
func TestFlowsOfFailedPasses(t *testing.T) {
	w := newWalks(table(1), nil)
	w.pass(t, table(1), true)
	w.expect(t, "the kernel held it all", 0)
	w.now = w.now.Add(time.Second)
	w.pass(t, table(1, 2), false)
	w.pass(t, table(), false)
	w.expect(t, "before a pass succeeds", 0)
	w.pass(t, table(1), true)
	// In between there may have been nobody, so that a client's flow passed as it was.
	w.expect(t, "2 came and went, 1 went and came", 1, to2, untranslated)
	w.now = w.now.Add(time.Second)
	w.pass(t, table(1), true)
	w.expect(t, "nothing new", 1, to2, untranslated)
}

// TestFlowsOfLongAgo: flows that became wrong while no agent ran are found by what the
// kernel holds, and by one look at all of them.
func TestFlowsOfLongAgo(t *testing.T) {
	w := newWalks(table(1, 2), nil)
	w.pass(t, table(1), false)
	if w.reviews != 0 {
		t.Error("reviewed before a pass succeeded: the next packet brings flows back")
	}
	w.pass(t, table(1), true)
	w.expect(t, "first pass", 1, to2)
	if w.reviews != 1 {
		t.Errorf("%d reviews, want one", w.reviews)
	}
	w.now = w.now.Add(time.Second)
	w.pass(t, table(2), true)
	if w.expect(t, "later", 2, to1); w.reviews != 1 {
		t.Errorf("%d reviews, want one", w.reviews)
	}
	w = newWalks(nil, errors.New("unreadable"))
	w.pass(t, table(1), true)
	w.expect(t, "what the kernel held is not known", 1, untranslated)
}

// TestWalkFails: it is tried again, without another change, and loses nothing.
func TestWalkFails(t *testing.T) {
	w := newWalks(table(1, 2), nil)
	w.fails = errors.New("injected")
	if again := w.pass(t, table(2), true); again != walkAgain {
		t.Errorf("again in %v, want %v", again, walkAgain)
	}
	w.now = w.now.Add(walkAgain)
	if again := w.pass(t, table(), true); again != walkAgain {
		t.Errorf("again in %v, want %v", again, walkAgain)
	}
	w.expect(t, "still failing", 2, to1, to2)
	if w.reviews != 0 {
		t.Errorf("%d reviews, want none yet", w.reviews)
	}
	w.fails = nil
	w.now = w.now.Add(walkAgain)
	if again := w.end(t.Context()); again != 0 {
		t.Errorf("again in %v, want nothing more to do", again)
	}
	w.expect(t, "at last", 3, to1, to2)
	if w.reviews != 1 {
		t.Errorf("%d reviews, want one", w.reviews)
	}
}

// TestWalksAreBounded: the first walk is at once, those of a burst are one, and walking
// takes a twentieth of the time, unless walks are so slow that somebody waited too long.
func TestWalksAreBounded(t *testing.T) {
	for _, c := range []struct{ takes, wait time.Duration }{
		{time.Millisecond, 19 * time.Millisecond}, {10 * time.Millisecond, 190 * time.Millisecond}, {time.Second, longest},
	} {
		w := newWalks(table(1, 2), nil)
		w.reviewed, w.takes = true, c.takes
		if wait := w.pass(t, table(1), true); wait != 0 {
			t.Errorf("walks of %v: the first waits %v", c.takes, wait)
		}
		w.expect(t, "at once", 1, to2)
		for i := range 5 {
			if wait := w.pass(t, table(byte(2+i)), true); wait != c.wait {
				t.Errorf("walks of %v: the next waits %v, want %v", c.takes, wait, c.wait)
			}
		}
		w.now = w.now.Add(c.wait)
		w.end(t.Context())
		w.expect(t, "the burst", 2, to1, to2, "10.96.0.10:53/UDP>10.244.1.3:5353", "10.96.0.10:53/UDP>10.244.1.4:5353", "10.96.0.10:53/UDP>10.244.1.5:5353")
	}
}
