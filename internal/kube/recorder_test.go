package kube

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func startRecorder(t *testing.T, client *fake.Clientset) (*Recorder, *testnet.Log) {
	t.Helper()
	log := &testnet.Log{}
	r := NewRecorder(slog.New(slog.NewTextHandler(log, nil)), client, "node-1")
	r.pause = time.Millisecond
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case <-done:
		case <-time.After(deadline):
			t.Error("Run did not end with its context")
		}
	})
	return r, log
}

func events(t *testing.T, client *fake.Clientset) []eventsv1.Event {
	t.Helper()
	l, err := client.EventsV1().Events("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Items
}

// TestPassingProblem: a problem that usually passes within a moment is reported if it lasts, once.
func TestPassingProblem(t *testing.T) {
	client := fake.NewClientset(apiService("web", "10.96.0.1"), apiService("short", "10.96.0.2"))
	r, log := startRecorder(t, client)
	r.passes = 300 * time.Millisecond
	weights := api.Problem{Reason: service.ReasonWeightsUnavailable, Message: "no weights"}
	r.Report(svcName("short"), []api.Problem{weights})
	r.Report(svcName("web"), []api.Problem{weights})
	r.Report(svcName("short"), nil)
	r.Report(svcName("web"), []api.Problem{weights})
	if n := len(events(t, client)); n != 0 {
		t.Errorf("%d events at once", n)
	}
	until(t, "an event", func() bool { return len(events(t, client)) > 0 })
	r.Report(svcName("web"), []api.Problem{weights})
	// Nothing else is due: the Service "short" has no problem any more.
	if next := r.release(); !next.IsZero() {
		t.Errorf("something is held until %v", next)
	}
	all := events(t, client)
	if len(all) != 1 || all[0].Regarding.Name != "web" || log.Count("no weights") != 1 {
		t.Errorf("%d events, %d log lines, want 1 about web", len(all), log.Count("no weights"))
	}
	r.Report(svcName("web"), nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known)+len(r.held) > 0 {
		t.Errorf("%v and %v are left", r.known, r.held)
	}
}

func TestRecorder(t *testing.T) {
	svc := apiService("web", "10.96.0.1")
	svc.UID = "u-1"
	client := fake.NewClientset(svc)
	r, log := startRecorder(t, client)
	port := api.Problem{Reason: "InvalidPort", Message: "port a is bad"}
	other := api.Problem{Reason: "InvalidPort", Message: strings.Repeat("ä", 2000)} // same reason, too long

	r.Report(svcName("web"), []api.Problem{port, port})
	r.Report(svcName("web"), []api.Problem{port, other})
	r.Report(svcName("web"), []api.Problem{port, other})
	until(t, "two events", func() bool { return len(events(t, client)) == 2 })
	if n := log.Count("port a is bad"); n != 1 {
		t.Errorf("%d log lines of a problem that lasts, want 1", n)
	}
	for _, e := range events(t, client) {
		if e.Regarding.Kind != "Service" || e.Regarding.Name != "web" || e.Regarding.UID != "u-1" || e.Reason != "InvalidPort" ||
			e.Type != "Warning" || e.Action == "" || e.ReportingController != "fairway" || e.ReportingInstance != "node-1" || e.EventTime.IsZero() {
			t.Errorf("event %+v", e)
		}
		if len(e.Note) > noteLimit || strings.ToValidUTF8(e.Note, "?") != e.Note {
			t.Errorf("note of %d bytes: %q", len(e.Note), e.Note)
		}
	}

	// A problem that returns is worth a new log line. Its event still exists, so there is no second event.
	r.Report(svcName("web"), nil)
	r.Report(svcName("web"), []api.Problem{port})
	until(t, "the queue to be empty", func() bool {
		creates := 0
		for _, a := range client.Actions() {
			if a.GetVerb() == "create" {
				creates++
			}
		}
		return creates == 3
	})
	if n := len(events(t, client)); n != 2 {
		t.Errorf("%d events, want 2", n)
	}
	if n := log.Count("port a is bad"); n != 2 {
		t.Errorf("%d log lines of a problem that came twice, want 2", n)
	}
	if n := log.Count("cannot write an event"); n != 0 {
		t.Errorf("that an event is there already was logged as an error %d times", n)
	}
}

// TestForeignServices: the users of a namespace read in an event that another namespace's Service has an address, and not
// which. The log names the Service.
func TestForeignServices(t *testing.T) {
	client := fake.NewClientset()
	r, log := startRecorder(t, client)
	text := "10.96.0.7:80/TCP belongs to Service victim/bank.v1, which is older; 192.0.2.1: port 80/TCP is also in use by Service default/api; x is Service victim/pod/b"
	r.Report(svcName("web"), []api.Problem{{Reason: "AddressInUse", Message: text}})
	until(t, "an event", func() bool { return len(events(t, client)) == 1 })
	want := "10.96.0.7:80/TCP belongs to a Service of another namespace, which is older; 192.0.2.1: port 80/TCP is also in use by Service default/api; x is a Service of another namespace"
	if e := events(t, client)[0]; e.Note != want {
		t.Errorf("the event says %q, want %q", e.Note, want)
	}
	if !strings.Contains(log.String(), text) {
		t.Errorf("the log does not have the whole text:\n%s", log)
	}
}

// TestNodeEvent: kubectl describe node shows events that carry the node's name as its UID.
func TestNodeEvent(t *testing.T) {
	client := fake.NewClientset()
	r, _ := startRecorder(t, client)
	r.NodeEvent("node-7", "PodCIDRRefused", "no")
	until(t, "an event", func() bool { return len(events(t, client)) == 1 })
	e := events(t, client)[0]
	if o := e.Regarding; o.Kind != "Node" || o.Name != "node-7" || o.UID != "node-7" || o.Namespace != "" {
		t.Errorf("the event is about %+v", o)
	}
	if e.Reason != "PodCIDRRefused" || e.Note != "no" || !strings.HasPrefix(e.Name, "node-7.") {
		t.Errorf("event %+v", e)
	}
}

// TestPodEvent: kubectl describe pod shows events with the pod's UID.
func TestPodEvent(t *testing.T) {
	client := fake.NewClientset()
	r, _ := startRecorder(t, client)
	r.PodEvent(svcName("web-1"), "uid-1", api.Problem{Reason: ReasonUnknownAnnotation, Message: "no"})
	until(t, "an event", func() bool { return len(events(t, client)) == 1 })
	e := events(t, client)[0]
	if o := e.Regarding; o.Kind != "Pod" || o.Name != "web-1" || o.UID != "uid-1" || o.Namespace != "default" || e.Note != "no" || e.Reason != ReasonUnknownAnnotation {
		t.Errorf("the event is %+v", e)
	}
}

// TestHostPodEvent: kubectl describe pod shows events about host ports, although the agent does not read pods for them.
func TestHostPodEvent(t *testing.T) {
	client := fake.NewClientset()
	r, _ := startRecorder(t, client)
	r.IdentifyPods(func(pod api.Name) string { return "uid of " + pod.String() })
	pod := service.HostPod{Name: svcName("web-1")}
	r.Report(pod.Entry(), []api.Problem{{Reason: "HostIPNotOnNode", Message: "no"}})
	until(t, "an event", func() bool { return len(events(t, client)) == 1 })
	e := events(t, client)[0]
	if o := e.Regarding; o.Kind != "Pod" || o.Name != "web-1" || o.UID != "uid of default/web-1" || o.Namespace != "default" || e.Reason != "HostIPNotOnNode" {
		t.Errorf("the event is %+v", e)
	}
}

func TestRecorderRetries(t *testing.T) {
	client := fake.NewClientset()
	fails := 0
	client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		fails++ // the fake holds its lock
		if fails <= eventTries-1 {
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	})
	r, log := startRecorder(t, client)
	r.Report(svcName("web"), []api.Problem{{Reason: "A", Message: "b"}})
	until(t, "the event", func() bool { return len(events(t, client)) == 1 })
	if n := log.Count("cannot write"); n != 0 {
		t.Errorf("%d complaints though it succeeded", n)
	}
}

func TestRecorderGivesUp(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", errors.New("no RBAC"))
	})
	r, log := startRecorder(t, client)
	r.Report(svcName("web"), []api.Problem{{Reason: "A", Message: "b"}})
	until(t, "one complaint", func() bool { return log.Count("no RBAC") == 1 })
}

// TestRecorderNeverBlocks: the proxy loop continues even if Run is not called.
func TestRecorderNeverBlocks(t *testing.T) {
	log := &testnet.Log{}
	r := NewRecorder(slog.New(slog.NewTextHandler(log, nil)), fake.NewClientset(), "node-1")
	for i := range 2 * queueLimit {
		r.Report(api.Name{Namespace: "ns", Name: string(rune('a' + i))}, []api.Problem{{Reason: "A", Message: "b"}})
	}
	if n := r.queue.Len(); n != queueLimit {
		t.Errorf("%d events wait, want %d", n, queueLimit)
	}
	if n := log.Count("too many events"); n != 1 {
		t.Errorf("%d log lines of a full queue, want 1", n)
	}
}
