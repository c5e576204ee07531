package flow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// rig is a Reconciler with the test as its Ender, and with a fake clock.
type rig struct {
	*Reconciler
	now      time.Time
	takes    time.Duration // duration of each search
	fails    error
	ended    []string // by the last search, sorted
	exist    map[Key]bool
	searches int
	audits   int
}

// EndFlows implements Ender. Unconfirmed flows exist if the test says so.
func (r *rig) EndFlows(_ context.Context, all []Flow) (Result, error) {
	r.searches++
	r.ended = nil
	var result Result
	for _, f := range all {
		switch {
		case !f.Unconfirmed:
			result.Ended++
			r.ended = append(r.ended, fmt.Sprintf("%v/%v>%v", f.Frontend, f.Proto, f.Endpoint))
		case r.exist[f.Key()]:
			result.Unconfirmed = append(result.Unconfirmed, f)
		}
	}
	slices.Sort(r.ended)
	r.now = r.now.Add(r.takes)
	return result, r.fails
}

// AuditFlows implements Ender.
func (r *rig) AuditFlows(context.Context, *Checker) (Result, error) {
	r.audits++
	r.now = r.now.Add(r.takes)
	return Result{}, r.fails
}

// newRig returns a rig for a kernel with the rules of held. A nil held means that the rules are unknown.
func newRig(held *service.Table, pods PodLookup) *rig {
	r := &rig{now: time.Unix(1_000_000, 0), takes: time.Millisecond, exist: map[Key]bool{}}
	r.Reconciler = New(Config{Log: slog.New(slog.DiscardHandler), Enders: []Ender{r}, Pods: pods})
	r.clock = func() time.Time { return r.now }
	if held != nil {
		r.Adopted(held)
	}
	return r
}

// table has one UDP Service with the given endpoints.
func table(last ...byte) *service.Table { return tableOf(api.UDP, last...) }

func tableOf(proto api.Proto, last ...byte) *service.Table {
	name := api.Name{Namespace: "ns", Name: "dns"}
	slice := &service.Slice{Name: name, Service: name, Ports: []service.SlicePort{{Proto: proto, Port: 5353}}}
	var pods []string
	for _, b := range last {
		slice.Endpoints = append(slice.Endpoints, service.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 1, b}), Ready: true, Serving: true})
		pods = append(pods, fmt.Sprintf("pod-%d", b))
	}
	slice.Pods = service.PackPodNames(pods)
	b := service.NewBuilder()
	b.Set(service.Compile(&service.Service{
		Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Ports: []service.Port{{Proto: proto, Port: 53}},
	}, []*service.Slice{slice}, service.Facts{Node: service.Node{Name: "n"}}))
	return b.Table(service.Settings{})
}

// pass is one pass of the loop, with a Sync that succeeds or fails.
func (r *rig) pass(t *testing.T, table *service.Table, succeeds bool) time.Duration {
	t.Helper()
	r.Wanted(table)
	if succeeds {
		r.Programmed()
	}
	return r.Reconcile(t.Context())
}

func (r *rig) expect(t *testing.T, when string, searches int, ended ...string) {
	t.Helper()
	if r.searches != searches || !slices.Equal(r.ended, ended) {
		t.Errorf("%s: searched %d times, ended %v; want %d, %v", when, r.searches, r.ended, searches, ended)
	}
}

const (
	to1          = "10.96.0.10:53/UDP>10.244.1.1:5353"
	to2          = "10.96.0.10:53/UDP>10.244.1.2:5353"
	untranslated = "10.96.0.10:53/UDP>invalid AddrPort"
)

// TestFlowsOfFailedPasses: a failed pass may have written some rules. The next pass must end the flows that these rules
// made, except flows that are right again.
func TestFlowsOfFailedPasses(t *testing.T) {
	r := newRig(table(1), nil)
	r.pass(t, table(1), true)
	r.expect(t, "the kernel held it all", 0)
	r.now = r.now.Add(time.Second)
	r.pass(t, table(1, 2), false)
	r.pass(t, table(), false)
	r.expect(t, "before a pass succeeds", 0)
	r.pass(t, table(1), true)
	// There may have been a time without an endpoint, so a client's flow may be untranslated.
	r.expect(t, "2 came and went, 1 went and came", 1, to2, untranslated)
	r.now = r.now.Add(time.Second)
	r.pass(t, table(1), true)
	r.expect(t, "nothing new", 1, to2, untranslated)
}

// TestFlowsOfLongAgo: flows became wrong while no agent ran. The kernel's rules and one audit of all flows reveal them.
func TestFlowsOfLongAgo(t *testing.T) {
	r := newRig(table(1, 2), nil)
	r.pass(t, table(1), false)
	if r.audits != 0 {
		t.Error("audited before a pass succeeded: the next packet brings flows back")
	}
	r.pass(t, table(1), true)
	r.expect(t, "first pass", 1, to2)
	if r.audits != 1 {
		t.Errorf("%d audits, want one", r.audits)
	}
	r.now = r.now.Add(time.Second)
	r.pass(t, table(2), true)
	if r.expect(t, "later", 2, to1); r.audits != 1 {
		t.Errorf("%d audits, want one", r.audits)
	}
	r = newRig(nil, nil)
	r.pass(t, table(1), true)
	r.expect(t, "what the kernel held is not known", 1, untranslated)
}

// TestSearchFails: a failed search is repeated without another change, and loses no flow.
func TestSearchFails(t *testing.T) {
	r := newRig(table(1, 2), nil)
	r.fails = errors.New("injected")
	if again := r.pass(t, table(2), true); again != failurePause {
		t.Errorf("again in %v, want %v", again, failurePause)
	}
	r.now = r.now.Add(failurePause)
	if again := r.pass(t, table(), true); again != failurePause {
		t.Errorf("again in %v, want %v", again, failurePause)
	}
	r.expect(t, "still failing", 2, to1, to2)
	if r.audits != 0 {
		t.Errorf("%d audits, want none yet", r.audits)
	}
	r.fails = nil
	r.now = r.now.Add(failurePause)
	if again := r.Reconcile(t.Context()); again != 0 {
		t.Errorf("again in %v, want nothing more to do", again)
	}
	r.expect(t, "at last", 3, to1, to2)
	if r.audits != 1 {
		t.Errorf("%d audits, want one", r.audits)
	}
}

// TestSearchesAreBounded: the first search is immediate, and a burst of changes leads to one search. Searches take a
// twentieth of the time. If they are very slow, they take more, so that no flow waits too long.
func TestSearchesAreBounded(t *testing.T) {
	for _, c := range []struct{ takes, wait time.Duration }{
		{time.Millisecond, 19 * time.Millisecond}, {10 * time.Millisecond, 190 * time.Millisecond}, {time.Second, longestPause},
	} {
		r := newRig(table(1, 2), nil)
		r.audited, r.takes = true, c.takes
		if wait := r.pass(t, table(1), true); wait != 0 {
			t.Errorf("searches of %v: the first waits %v", c.takes, wait)
		}
		r.expect(t, "at once", 1, to2)
		for i := range 5 {
			if wait := r.pass(t, table(byte(2+i)), true); wait != c.wait {
				t.Errorf("searches of %v: the next waits %v, want %v", c.takes, wait, c.wait)
			}
		}
		r.now = r.now.Add(c.wait)
		r.Reconcile(t.Context())
		r.expect(t, "the burst", 2, to1, to2, "10.96.0.10:53/UDP>10.244.1.3:5353", "10.96.0.10:53/UDP>10.244.1.4:5353", "10.96.0.10:53/UDP>10.244.1.5:5353")
	}
}

// other is a second Ender, which fails.
type other struct{ asked int }

// EndFlows implements Ender.
func (o *other) EndFlows(context.Context, []Flow) (Result, error) {
	o.asked++
	return Result{Ended: 3}, errors.New("injected")
}

// AuditFlows implements Ender.
func (o *other) AuditFlows(context.Context, *Checker) (Result, error) { return Result{}, nil }

// TestEnders: every Ender is called, even after another has failed, and their results are added up.
func TestEnders(t *testing.T) {
	r, o := newRig(table(1, 2), nil), &other{}
	r.cfg.Enders = []Ender{o, r}
	counted := 0
	r.cfg.Observe = func(_ time.Duration, ended int) { counted += ended }
	if again := r.pass(t, table(1), true); again != failurePause {
		t.Errorf("again in %v, want %v", again, failurePause)
	}
	if r.expect(t, "one failed", 1, to2); o.asked != 1 || counted != 4 {
		t.Errorf("the other was asked %d times, %d flows counted; want 1, 4", o.asked, counted)
	}
	r = newRig(table(1, 2), nil)
	r.cfg.Enders = nil
	if again := r.pass(t, table(1), true); again != 0 {
		t.Errorf("no Ender: again in %v", again)
	}
}
