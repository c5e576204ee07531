package kube

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// A countingServer counts the requests for each namespace, and answers each after a time.
type countingServer struct {
	client kubernetes.Interface

	mu    sync.Mutex
	count map[string]int       // by namespace
	last  map[string]time.Time // of each namespace's last write
}

func newCountingServer(t *testing.T, delay time.Duration) *countingServer {
	t.Helper()
	s := &countingServer{count: map[string]int{}, last: map[string]time.Time{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-time.After(delay)
		_, path, _ := strings.Cut(r.URL.Path, "/namespaces/")
		namespace, _, _ := strings.Cut(path, "/")
		s.mu.Lock()
		s.count[namespace]++
		if r.Method != http.MethodGet {
			s.last[namespace] = time.Now()
		}
		s.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if strings.Contains(path, "/events") {
			_, _ = io.Copy(w, r.Body)
			return
		}
		fmt.Fprintf(w, `{"apiVersion":"v1","kind":"Service","metadata":{"namespace":%q,"name":"web","uid":"u-1"}}`, namespace)
	}))
	t.Cleanup(server.Close)
	client, err := Connect(Connection{Master: server.URL, QPS: -1, ContentType: "application/json"})
	if err != nil {
		t.Fatal(err)
	}
	s.client = client
	return s
}

func (s *countingServer) requests(namespace string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[namespace]
}

// written returns the time of a namespace's last write; zero: none.
func (s *countingServer) written(namespace string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[namespace]
}

// TestGreedyProblems: a tenant that changes an invalid annotation again and again costs a bounded number of requests
// and log lines. Another tenant's event is written at once.
func TestGreedyProblems(t *testing.T) {
	t.Parallel()
	s := newCountingServer(t, 0)
	log := &testnet.Log{}
	r := NewRecorder(slog.New(slog.NewTextHandler(log, nil)), s.client, "node-1")
	runUntilEnd(t, r)
	evil, victim := api.Name{Namespace: "evil", Name: "web"}, api.Name{Namespace: "victim", Name: "web"}
	for i := range 1000 {
		r.Report(evil, []api.Problem{{Reason: "InvalidAnnotation", Message: fmt.Sprintf("weight x%d is no number", i)}})
		time.Sleep(time.Millisecond)
	}
	start := time.Now()
	r.Report(victim, []api.Problem{{Reason: "InvalidAnnotation", Message: "no number"}})
	until(t, "the other tenant's event", func() bool { return s.requests("victim") == 2 })
	if late := s.written("victim").Sub(start); late > time.Second {
		t.Errorf("the other tenant's event came after %v", late)
	}
	spent := s.requests("evil")
	if spent < 2 || spent > 2*(25+1) {
		t.Errorf("%d requests for one Service, want 2 for each of 25 problems", spent)
	}
	if n := log.Count("is no number"); n < 1 || n > 25+1 {
		t.Errorf("%d log lines about one Service, want 25", n)
	}
	if n := log.Count("changes its problems too often"); n != 1 {
		t.Errorf("%d log lines about the limit, want 1", n)
	}

	// After the pause the problem that remains is reported, although it does not change.
	r.mu.Lock()
	r.limits = newEventLimits()
	r.mu.Unlock()
	r.Report(evil, []api.Problem{{Reason: "InvalidAnnotation", Message: "weight x999 is no number"}})
	until(t, "the event of the last problem", func() bool { return s.requests("evil") > spent })
}

// TestEventsTakeTurns: a tenant with problems in many Services does not delay another tenant's event.
func TestEventsTakeTurns(t *testing.T) {
	t.Parallel()
	s := newCountingServer(t, 20*time.Millisecond)
	r := NewRecorder(slog.New(slog.DiscardHandler), s.client, "node-1")
	runUntilEnd(t, r)
	problem := []api.Problem{{Reason: "InvalidAnnotation", Message: "no number"}}
	for i := range 2 * queueLimit {
		r.Report(api.Name{Namespace: "evil", Name: fmt.Sprint("web-", i)}, problem)
	}
	start := time.Now()
	r.Report(api.Name{Namespace: "victim", Name: "web"}, problem)
	until(t, "the other tenant's event", func() bool { return !s.written("victim").IsZero() })
	if late := s.written("victim").Sub(start); late > time.Second {
		t.Errorf("the other tenant's event came after %v", late)
	}
}

// TestStatusesTakeTurns: 1,000 Services of one namespace whose statuses change all the time do not delay the status of
// another namespace.
func TestStatusesTakeTurns(t *testing.T) {
	t.Parallel()
	s := newCountingServer(t, 0)
	w := NewStatusWriter(StatusConfig[string]{
		Log: slog.New(slog.DiscardHandler), Owner: "fairway-addresses", Kind: "services",
		Have: func(api.Name) (string, bool) { return "", true }, // flaps: the written status is gone again
		Apply: func(ctx context.Context, name api.Name, _ string, how metav1.ApplyOptions) error {
			_, err := s.client.CoreV1().Services(name.Namespace).ApplyStatus(ctx, applycorev1.Service(name.Name, name.Namespace), how)
			return err
		},
	})
	runUntilEnd(t, w)
	for i := range 1000 {
		w.Set(api.Name{Namespace: "evil", Name: fmt.Sprint("web-", i)}, "192.0.2.1")
	}
	start := time.Now()
	w.Set(api.Name{Namespace: "victim", Name: "web"}, "192.0.2.2")
	until(t, "the other tenant's status", func() bool { return s.requests("victim") > 0 })
	if late := s.written("victim").Sub(start); late > time.Second {
		t.Errorf("the other tenant's status came after %v", late)
	}
	if n := s.requests("evil"); n == 0 {
		t.Error("no write for the flapping Services: this proves nothing")
	}
}

// TestGreedyNamespace: new objects do not bring new events without end. Pods and Services of one name have limits of
// their own.
func TestGreedyNamespace(t *testing.T) {
	t.Parallel()
	l := newEventLimits()
	allowed := 0
	for i := range 10 * namespaceEvents {
		if ok, _ := l.allow(report{name: api.Name{Namespace: "evil", Name: fmt.Sprint("web-", i)}}); ok {
			allowed++
		}
	}
	if allowed < namespaceEvents || allowed > namespaceEvents+1 {
		t.Errorf("%d events of one namespace, want %d", allowed, namespaceEvents)
	}
	victim := api.Name{Namespace: "victim", Name: "web"}
	for range objectEvents {
		l.allow(report{name: victim})
	}
	if ok, first := l.allow(report{name: victim}); ok || !first {
		t.Errorf("event %d of an object: allowed %v, first refused %v; want false, true", objectEvents+1, ok, first)
	}
	if ok, _ := l.allow(report{name: victim, subject: podSubject}); !ok {
		t.Error("the event of a pod counts for the Service of that name")
	}
	if ok, _ := l.allow(report{name: victim, subject: subject{kind: "Gateway"}}); !ok {
		t.Error("a Gateway with the name of a Service has no event")
	}
}
