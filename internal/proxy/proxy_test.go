package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// fakeSource is a Source that the test controls.
type fakeSource struct {
	synced, dirty chan struct{}

	mu       sync.Mutex
	services map[api.Name]*service.Service
	slices   map[api.Name][]*service.Slice
	changed  map[api.Name]bool
}

func newAPI() *fakeSource {
	return &fakeSource{
		synced: make(chan struct{}), dirty: make(chan struct{}, 1),
		services: map[api.Name]*service.Service{}, slices: map[api.Name][]*service.Slice{}, changed: map[api.Name]bool{},
	}
}

func (a *fakeSource) Synced() <-chan struct{}          { return a.synced }
func (a *fakeSource) Dirty() <-chan struct{}           { return a.dirty }
func (a *fakeSource) Triggers() map[api.Name]time.Time { return nil }
func (a *fakeSource) Slices(n api.Name) []*service.Slice {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.slices[n]
}

func (a *fakeSource) remove(i int) {
	n := api.Name{Namespace: "ns", Name: fmt.Sprint("svc-", i)}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.services, n)
	delete(a.slices, n)
	a.changed[n] = true
}
func (a *fakeSource) Take() (names []api.Name) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for n := range a.changed {
		names = append(names, n)
	}
	clear(a.changed)
	return names
}

func (a *fakeSource) Service(n api.Name) (*service.Service, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, ok := a.services[n]
	return s, ok
}

// set adds the i-th Service, which has no endpoints.
func (a *fakeSource) set(i int) api.Name {
	s := &service.Service{
		Name:       api.Name{Namespace: "ns", Name: fmt.Sprint("svc-", i)},
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
		Ports:      []service.Port{{Name: "http", Proto: api.TCP, Port: 80}},
	}
	a.put(s)
	return s.Name
}

func (a *fakeSource) put(s *service.Service, slices ...*service.Slice) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.services[s.Name], a.slices[s.Name] = s, slices
	a.changed[s.Name] = true
	select {
	case a.dirty <- struct{}{}:
	default:
	}
}

// recorded is a real datapath whose passes the test can see and stop.
type recorded struct {
	datapath.Datapath
	syncs chan *service.Table // receives the table before each Sync
	done  atomic.Pointer[service.Table]
}

func (r *recorded) Sync(ctx context.Context, t *service.Table) (datapath.Stats, error) {
	r.syncs <- t
	stats, err := r.Datapath.Sync(ctx, t)
	if err == nil {
		r.done.Store(t)
	}
	return stats, err
}

type health struct{ queued, synced, beat, failed, restored chan struct{} }

func (h health) Queued()      { notify(h.queued) }
func (h health) Synced()      { notify(h.synced) }
func (h health) Beat()        { notify(h.beat) }
func (h health) Failed(error) { notify(h.failed) }
func (h health) Restored()    { notify(h.restored) }

func newHealth() health {
	one := func() chan struct{} { return make(chan struct{}, 1) }
	return health{one(), one(), one(), one(), one()}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// harness is a Loop in a separate network namespace.
type harness struct {
	api     *fakeSource
	syncs   chan *service.Table
	health  health
	applied *Applied
	metrics *Metrics
	done    func() *service.Table // the table of the last successful Sync
	dump    func() *service.Table // valid after stop
	log     *testnet.Log
	stop    func()
}

func start(t *testing.T, fail func() error) *harness {
	t.Helper()
	testnet.NeedRoot(t, "makes network namespaces")
	real, err := nftables.New(nftables.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(real.Close)
	real.FailWrites(fail)
	h := &harness{
		api: newAPI(), syncs: make(chan *service.Table),
		health: newHealth(), applied: &Applied{}, log: &testnet.Log{},
	}
	dp := &recorded{Datapath: real, syncs: h.syncs}
	h.metrics = NewMetrics(MetricsConfig{Registry: prometheus.NewRegistry(), Mode: "nftables"})
	h.done = dp.done.Load
	loop := New(Config{
		Log: command.NewLog(h.log, slog.LevelInfo), Source: h.api, Datapath: dp,
		Facts:   func() service.Facts { return service.Facts{Node: service.Node{Name: "n"}} },
		Applied: h.applied, Health: h.health, Metrics: h.metrics, MaxRetry: 200 * time.Millisecond,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	dumped := make(chan *service.Table, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the namespace ends with the thread
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("make a network namespace: %w [run the tests as root]", err)
			return
		}
		err := loop.Run(ctx)
		real.FailWrites(nil)
		held, derr := real.Adopt(context.Background())
		dumped <- held.Table
		done <- errors.Join(err, derr)
	}()
	stopped := false
	h.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		for {
			select {
			case <-h.syncs: // lets a running pass end
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
				return
			}
		}
	}
	h.dump = func() *service.Table { h.stop(); return <-dumped }
	t.Cleanup(h.stop)
	return h
}

// pass allows the next Sync and returns its table.
func (h *harness) pass(t *testing.T) *service.Table {
	t.Helper()
	select {
	case table := <-h.syncs:
		return table
	case <-time.After(30 * time.Second):
		t.Fatal("no pass within 30 s")
		return nil
	}
}

func TestNothingBeforeSynced(t *testing.T) {
	h := start(t, nil)
	h.api.set(1)
	select {
	case <-h.syncs:
		t.Fatal("a pass before the first lists were in")
	case <-time.After(100 * time.Millisecond):
	}
	close(h.api.synced)
	if n, _ := h.pass(t).Len(); n != 1 {
		t.Fatalf("the first pass has %d Services, want 1", n)
	}
}

func TestBurstIsOnePass(t *testing.T) {
	h := start(t, nil)
	close(h.api.synced)
	h.pass(t) // the first pass has an empty table
	<-h.health.synced
	const burst = 500
	for i := range burst {
		h.api.set(i)
	}
	// The loop took some changes at the first wake-up, and the others at the second.
	passes := 0
	for n := 0; n < burst; passes++ {
		n, _ = h.pass(t).Len()
	}
	if passes > 2 {
		t.Errorf("%d changes took %d passes, want at most 2", burst, passes)
	}
}

func TestFailureIsRetriedAndLosesNothing(t *testing.T) {
	var mu sync.Mutex
	left := 3
	h := start(t, func() error {
		mu.Lock()
		defer mu.Unlock()
		if left--; left >= 0 {
			return errors.New("injected")
		}
		return nil
	})
	h.api.set(1)
	close(h.api.synced)
	h.pass(t)
	h.api.set(2) // during the failed pass
	for synced := false; !synced; {
		select {
		case <-h.syncs:
		case <-h.health.synced:
			synced = true
		case <-time.After(30 * time.Second):
			t.Fatal("not synced within 30 s")
		}
	}
	if n, _ := h.dump().Len(); n != 2 {
		t.Errorf("the kernel has %d Services, want 2", n)
	}
}

func TestRulesStayWhenTheLoopEnds(t *testing.T) {
	h := start(t, nil)
	h.api.set(7)
	close(h.api.synced)
	want := h.pass(t)
	<-h.health.synced
	if d := service.Diff(h.dump(), want); len(d) != 0 {
		t.Errorf("after the end the kernel differs: %v", d)
	}
}

// TestBeat: a loop also counts as alive while the kernel refuses all writes. A restart would turn a fault of one object
// into a fault of all.
func TestBeat(t *testing.T) {
	h := start(t, func() error { return errors.New("injected") })
	h.api.set(1)
	close(h.api.synced)
	for range 5 {
		h.pass(t)
		select {
		case <-h.health.beat:
		case <-time.After(30 * time.Second):
			t.Fatal("no beat within 30 s")
		}
	}
	select {
	case <-h.health.synced:
		t.Error("the loop says that it succeeded")
	default:
	}
}
