package kube

import (
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// cluster contains the objects of the tests' API server. It has a Service that asks for its pods' weights, the weights
// from the controller, and the other objects that a consumer of Services reads.
func cluster() map[string][]runtime.Object {
	return map[string][]runtime.Object{
		servicesPath: {versioned(weighted("web", "10.96.0.1", "web"), 1)},
		slicesPath:   {versioned(weighed(apiSlice("web-1", "web", "10.0.0.1"), "10.0.0.1=3"), 2)},
		nodesPath:    {versioned(apiNode("node-1", "a"), 3)},
		rangesPath: {versioned(&networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12"}},
		}, 5)},
	}
}

// kinds maps paths to the kinds of objects.
var kinds = map[string]string{
	servicesPath: "services", slicesPath: "endpointslices", nodesPath: "nodes", rangesPath: "servicecidrs",
}

// fails answers with an error.
func fails(code int, reason metav1.StatusReason) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"` + string(reason) + `","message":"this test says no"}`))
	}
}

// failing are the ways in which a list can fail.
func failing() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"forbidden": fails(http.StatusForbidden, metav1.StatusReasonForbidden),
		"absent":    fails(http.StatusNotFound, metav1.StatusReasonNotFound),
		"failing":   fails(http.StatusInternalServerError, metav1.StatusReasonInternalError),
		"too long":  fails(http.StatusRequestHeaderFieldsTooLarge, metav1.StatusReasonUnknown),
		"silent":    func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	}
}

// against starts a Store and its consumers against an API server.
func against(t *testing.T, server *streamServer, log *slog.Logger) *source {
	t.Helper()
	client, err := Connect(Connection{Master: server.URL, ContentType: "application/json"})
	if err != nil {
		t.Fatal(err)
	}
	s := newSource(Config{Log: log, Client: client, NodeName: "node-1"})
	runUntilEnd(t, s)
	return s
}

// gauges returns the values of a metric, by kind.
func gauges(t *testing.T, s *source, name string) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(s.Store)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				all[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	return all
}

// TestWithoutOptional: a consumer of Services starts without the optional lists, in whatever way they fail. The log and
// the metrics report the failure.
func TestWithoutOptional(t *testing.T) {
	for _, path := range []string{nodesPath, rangesPath} {
		for how, fail := range failing() {
			t.Run(kinds[path]+" "+how, func(t *testing.T) {
				t.Parallel()
				server := newStreamServer(t, cluster())
				server.instead[path] = fail
				log := &testnet.Log{}
				s := against(t, server, slog.New(slog.NewTextHandler(log, nil)))
				takeUntil(t, s, svcName("web"))
				if n := log.Count(`msg="starting without an optional list; it is used when it arrives" consumer=services kind=` + kinds[path]); n != 1 {
					t.Errorf("%d log lines say what is missing, want 1", n)
				}
				for p, kind := range kinds {
					if is := gauges(t, s, "fairway_api_listed")[kind] == 1; is != (p != path) {
						t.Errorf("metrics: %s listed: %v", kind, is)
					}
				}
				if _, known := s.Node(); known != (path != nodesPath) {
					t.Errorf("the node is known: %v", known)
				}
			})
		}
	}
}

// TestNeedless: a failing list does not delay a consumer that does not need it.
func TestNeedless(t *testing.T) {
	for how, fail := range failing() {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			server := newStreamServer(t, cluster())
			for path := range kinds {
				if path != nodesPath {
					server.instead[path] = fail
				}
			}
			s := against(t, server, slog.New(slog.DiscardHandler))
			waitFor(t, s.nodeSub.Synced(), "Synced of a consumer of nodes")
			if got := s.nodeSub.Take(); len(got) != 1 || got[0].Name != "node-1" {
				t.Errorf("took %v, want the node", got)
			}
			if got := s.Take(); len(got) != 0 {
				t.Errorf("a consumer of Services took %v without any Service listed", got)
			}
		})
	}
}

// TestOptionalComesLate: an optional list that arrives late is used.
func TestOptionalComesLate(t *testing.T) {
	server := newStreamServer(t, cluster())
	come := make(chan struct{})
	for path, kind := range map[string]runtime.Object{nodesPath: apiNode("", "")} {
		server.instead[path] = func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-come:
				server.watch(w, r, kind)
			case <-r.Context().Done():
			}
		}
	}
	s := against(t, server, slog.New(slog.DiscardHandler))
	takeUntil(t, s, svcName("web"))
	if _, known := s.Node(); known {
		t.Fatal("the lists are here before they come")
	}
	close(come)
	waitFor(t, s.nodeSub.Synced(), "Synced of a consumer of nodes")
	if n, _ := s.Node(); n.Zone != "a" {
		t.Errorf("zone %q, want a", n.Zone)
	}
}

// stub is an input that the test controls.
func stub(kind string) (*int32, Input) {
	progress := new(int32)
	return progress, Input{kind: kind, without: "nothing happens", progress: func() int32 { return *progress }, len: func() int { return 0 }}
}

// TestGate tests the rule of a gate with a fake clock.
func TestGate(t *testing.T) {
	for name, test := range map[string]struct {
		required, optional int32
		opens              time.Duration // after both reach this state; -1 means never
	}{
		"all is in":                      {listed, listed, 0},
		"optional: refused":              {listed, refused, 0},
		"optional: late":                 {listed, notListed, optionalWait},
		"required: late":                 {notListed, listed, -1},
		"required: refused":              {refused, listed, -1},
		"required: late, nothing at all": {notListed, notListed, -1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &Store{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
				sub := s.Subscribe("test")
				progress1, required := stub("a")
				progress2, optional := stub("b")
				sub.Need([]Input{required}, []Input{optional})
				time.Sleep(time.Hour) // no input is pending yet
				*progress1, *progress2 = test.required, test.optional
				start := time.Now()
				sub.Check()
				opened := time.Duration(-1)
				select {
				case <-sub.Synced():
					opened = time.Since(start)
				case <-time.After(time.Hour):
				}
				if opened != test.opens {
					t.Errorf("opened after %v, want %v", opened, test.opens)
				}
				sub.stop()
			})
		})
	}
}
