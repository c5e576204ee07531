package kube

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestServerAway: the log does not report each attempt to reach a server that is down. The client connects when the
// server returns. Meanwhile Run ends at once with its context.
func TestServerAway(t *testing.T) {
	var up atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !up.Load():
			http.Error(w, "away", http.StatusServiceUnavailable)
			return
		case r.URL.Query().Get("watch") != "":
			http.Error(w, "gone again", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"List","metadata":{"resourceVersion":"7"},"items":[]}`))
	}))
	defer server.Close()
	client, err := Connect(Connection{Master: server.URL, ContentType: "application/json"})
	if err != nil {
		t.Fatal(err)
	}
	log := &testnet.Log{}
	s := newSource(Config{Log: slog.New(slog.NewTextHandler(log, nil)), Client: client, NodeName: "node-1"})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for _, kind := range []string{"services", "endpointslices", "nodes"} {
		until(t, "a log line", func() bool { return log.Count("kind="+kind) > 0 })
	}

	up.Store(true)
	waitFor(t, s.Synced(), "Synced")
	if n := log.Count("cannot read from the API server"); n < 3 || n > 30 {
		t.Errorf("%d log lines of three kinds that could not be read", n)
	}

	stop()
	select {
	case <-done:
	case <-time.After(deadline):
		t.Fatal("Run did not end")
	}
}

// TestForbidden: missing rights give one log line for each kind, with the server's words.
func TestForbidden(t *testing.T) {
	asked := make(chan struct{}, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"user fairway cannot list this"}`))
	}))
	t.Cleanup(server.Close)
	client, err := Connect(Connection{Master: server.URL, ContentType: "application/json"})
	if err != nil {
		t.Fatal(err)
	}
	log := &testnet.Log{}
	runUntilEnd(t, newSource(Config{Log: slog.New(slog.NewTextHandler(log, nil)), Client: client, NodeName: "node-1"}))
	for range 9 { // the stream, the list, and a second round of each
		waitFor(t, asked, "a request")
	}
	if n := log.Count("user fairway cannot list this"); n != 4 { // ServiceCIDRs are the fourth
		t.Errorf("%d log lines, want one a kind", n)
	}
}

func TestPace(t *testing.T) { synctest.Test(t, testPace) }

// testPace runs with a fake clock.
func testPace(t *testing.T) {
	p := &pacer{log: slog.New(slog.DiscardHandler), kind: "services", failed: func() {}, refused: func() {}}
	if d := p.pause(); d != 0 {
		t.Errorf("the first request waits for %v", d)
	}
	p.after(t.Context(), context.DeadlineExceeded, false, false)
	if d := p.pause(); d < firstPause || d > 2*firstPause {
		t.Errorf("the request after a failure waits for %v", d)
	}
	p.after(t.Context(), nil, false, false)
	if d := p.pause(); d != 0 {
		t.Errorf("the watch after a list waits for %v", d)
	}
	p.after(t.Context(), nil, true, false)
	if d := p.pause(); d > 0 {
		t.Errorf("the request after a watch that ended at once waits for %v", d)
	}
	for i := range 3 {
		p.after(t.Context(), nil, true, false)
		if d := p.pause(); d < firstPause<<i || d > firstPause<<i*3/2 {
			t.Errorf("the request after %d more of them waits for %v", i+1, d)
		}
	}
	p.after(t.Context(), nil, true, false)
	p.watchStart = time.Now().Add(-watchStable)
	if d := p.pause(); d != 0 {
		t.Errorf("the request after a long watch waits for %v", d)
	}
}

// TestReturn: a server was down, or ended each watch at once, for any time. After its return, all kinds are requested
// again within seconds, although only one of them polls often meanwhile. Kinds whose watches end at once do not wake
// each other.
func TestReturn(t *testing.T) { synctest.Test(t, testReturn) }

func testReturn(t *testing.T) {
	for name, meanwhile := range map[string]error{"away": context.DeadlineExceeded, "ends each watch": nil} {
		for range 10 { // agents, which pause at random
			back := time.Now().Add(10 * time.Minute)
			s := newServer()
			asked := [4]int{}
			var returned [4]time.Duration
			var all sync.WaitGroup
			for i := range asked {
				p := &pacer{log: slog.New(slog.DiscardHandler), kind: "kind", failed: func() {}, refused: func() {}, server: s}
				all.Go(func() {
					for p.before(t.Context()) == nil && time.Now().Before(back) {
						asked[i]++
						p.after(t.Context(), meanwhile, true, false)
					}
					returned[i] = time.Since(back)
					p.after(t.Context(), nil, true, false)
				})
			}
			all.Wait()
			often := 0
			for i := range asked {
				if returned[i] > 5*time.Second {
					t.Errorf("%s: kind %d was asked for %v after the server's return", name, i, returned[i])
				}
				if asked[i] > 30 {
					often++
				}
				if asked[i] > 400 {
					t.Errorf("%s: kind %d was asked for %d times in ten minutes", name, i, asked[i])
				}
			}
			if often != 1 {
				t.Errorf("%s: %d kinds were asked for often: %v times in ten minutes", name, often, asked)
			}
		}
	}
}

// TestReturnForgets: a restarted API server does not know the resource version of a watch, so it answers and ends the
// watch at once. The next list does not wait as if the server was down, whatever ended before the restart.
func TestReturnForgets(t *testing.T) { synctest.Test(t, testReturnForgets) }

func testReturnForgets(t *testing.T) {
	for name, test := range map[string]struct {
		last  error // of the outage
		waits bool
	}{
		"away":       {context.DeadlineExceeded, false},
		"overloaded": {apierrors.NewTooManyRequestsError("busy"), true}, // the answer does not come from another server
	} {
		p := &pacer{log: slog.New(slog.DiscardHandler), kind: "kind", failed: func() {}, refused: func() {}}
		for range 5 { // watches that ended at once before
			p.after(t.Context(), nil, true, false)
			p.pause()
		}
		for range 10 {
			p.after(t.Context(), test.last, true, false)
		}
		p.after(t.Context(), nil, true, false)
		if pause := p.pause(); pause > 0 != test.waits {
			t.Errorf("%s: the list waits for %v", name, pause)
		}
	}
}

// TestReturnDuringRequest: the request of one kind was in flight when the server answered the others, and then failed.
// It is repeated at once.
func TestReturnDuringRequest(t *testing.T) { synctest.Test(t, testReturnDuringRequest) }

func testReturnDuringRequest(t *testing.T) {
	s := newServer()
	s.prober = &pacer{} // another kind is the prober
	p := &pacer{log: slog.New(slog.DiscardHandler), kind: "kind", failed: func() {}, refused: func() {}, server: s}
	fail := func() {
		if err := p.before(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.after(t.Context(), context.DeadlineExceeded, true, false)
	}
	for range 10 {
		fail()
	}
	if err := p.before(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.setWell()
	p.after(t.Context(), context.DeadlineExceeded, true, false)
	start := time.Now()
	fail()
	if pause := time.Since(start); pause > 0 {
		t.Errorf("asked again after %v", pause)
	}
	start = time.Now()
	fail()
	if pause := time.Since(start); pause < maxPause {
		t.Errorf("without an answer asked again after %v", pause)
	}
}

// TestRightsReturn: agents had no right to read for any time. They read all kinds again within seconds of the right's
// return, even if only one kind was forbidden. An optional kind that was never readable is requested seldom.
func TestRightsReturn(t *testing.T) { synctest.Test(t, testRightsReturn) }

func testRightsReturn(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "kind"}, "", nil)
	back := time.Now().Add(10 * time.Minute)
	type kind struct {
		name, without string
		had           bool // was readable before
		seldom        bool // is requested seldom, and read late
	}
	needed, start := kind{name: "needed", had: true}, kind{name: "needed, never had"}
	optional, never := kind{name: "optional", without: "less", had: true}, kind{name: "never had", without: "less", seldom: true}
	var all sync.WaitGroup
	for _, kinds := range [][]kind{{needed, optional, needed, never}, {needed}, {start, start}, {optional}, {never}} {
		for range 10 { // agents, which pause at random
			s := newServer()
			for _, k := range kinds {
				all.Go(func() {
					p := &pacer{log: slog.New(slog.DiscardHandler), kind: k.name, without: k.without, failed: func() {}, refused: func() {}, server: s, succeeded: k.had}
					asked := 0
					for ; ; asked++ {
						if err := p.before(t.Context()); err != nil {
							t.Error(err)
							return
						}
						if time.Now().After(back) {
							break
						}
						p.after(t.Context(), forbidden, true, false)
					}
					p.after(t.Context(), nil, true, false)
					if took := time.Since(back); took > 5*time.Second && !k.seldom {
						t.Errorf("%s of %d: read again after %v", k.name, len(kinds), took)
					}
					if asked > 330 || k.seldom && asked > 30 {
						t.Errorf("%s of %d: asked for %d times in ten minutes", k.name, len(kinds), asked)
					}
				})
			}
		}
	}
	all.Wait()
}

// TestPacerOfKind: a kind of custom resources has the pauses of a CustomResourceDefinition.
func TestPacerOfKind(t *testing.T) {
	s := New(Config{Log: slog.New(slog.DiscardHandler), Client: fake.NewClientset()})
	custom, builtIn := Kind[*unstructured.Unstructured, string]{Object: &unstructured.Unstructured{}}, Kind[*corev1.Service, string]{Object: &corev1.Service{}}
	if !newPacer(s, custom, newFeed(s.cfg.Log, custom)).custom || newPacer(s, builtIn, newFeed(s.cfg.Log, builtIn)).custom {
		t.Error("the pacers do not tell custom resources from built-in kinds")
	}
}

// TestInstalled: a CustomResourceDefinition comes after any time. Each agent reads its objects within seconds, and has not
// asked more than five times a minute before. A built-in kind comes with an upgrade of the API server only.
func TestInstalled(t *testing.T) { synctest.Test(t, testInstalled) }

func testInstalled(t *testing.T) {
	absent := apierrors.NewNotFound(schema.GroupResource{Resource: "kind"}, "")
	log := &testnet.Log{}
	for custom, most := range map[bool]struct {
		late  time.Duration
		asked int
	}{true: {15 * time.Second, 5 * 60}, false: {8 * time.Minute, 30}} {
		for range 10 { // agents, which pause at random
			p := &pacer{log: slog.New(slog.NewTextHandler(log, nil)), kind: "kind", without: "less", custom: custom, failed: func() {}, refused: func() {}, server: newServer()}
			asked, came := 0, time.Now().Add(time.Hour)
			for p.before(t.Context()) == nil && time.Now().Before(came) {
				asked++
				p.after(t.Context(), absent, true, false)
			}
			p.after(t.Context(), nil, true, false)
			if late := time.Since(came); late > most.late || asked > most.asked {
				t.Errorf("custom %v: read after %v, and asked for %d times in an hour; want at most %v", custom, late, asked, most)
			}
		}
	}
	if had, has := log.Count("meanwhile=less"), log.Count("the API server has the kind now"); had != 20 || has != 20 {
		t.Errorf("20 agents logged %d times that the kind is missing, and %d times that it came", had, has)
	}
}

// A pause ends with its context.
func TestPaceStops(t *testing.T) {
	p := &pacer{log: slog.New(slog.DiscardHandler), kind: "services", failed: func() {}, refused: func() {}, failures: 20}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := p.before(ctx); err == nil {
		t.Error("a pause outlasted its context")
	}
}

// TestAbsentAfterFault: a kind that the API server does not have is no trouble, also after the server has failed.
func TestAbsentAfterFault(t *testing.T) {
	var all troubles
	p := &pacer{log: slog.New(slog.DiscardHandler), kind: "clusternetworkpolicies", without: "they are not enforced", custom: true, refused: func() {}, failed: func() {}, trouble: &all}
	p.after(t.Context(), apierrors.NewInternalError(http.ErrAbortHandler), false, false)
	if len(all.all) != 1 {
		t.Fatalf("a failure is no trouble: %v", all.all)
	}
	p.after(t.Context(), apierrors.NewNotFound(schema.GroupResource{Resource: "clusternetworkpolicies"}, ""), false, false)
	if len(all.all) != 0 {
		t.Errorf("an absent kind is a trouble: %v", all.all)
	}
}
