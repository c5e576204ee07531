package kube

import (
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// TestEjectionAnnotation: a Service replaces the node's first ejection, or turns ejection off.
func TestEjectionAnnotation(t *testing.T) {
	for value, want := range map[string]time.Duration{"30s": 30 * time.Second, "off": service.EjectionOff, "1h": 0, "500ms": 0, "": 0} {
		o := apiService("web", "10.96.0.1")
		o.Annotations = map[string]string{"fairway.net/ejection": value}
		svc := ConvertService(o)
		if svc.Ejection != want {
			t.Errorf("%q: %v, want %v", value, svc.Ejection, want)
		}
		if bad := len(svc.Problems) > 0; bad != (want == 0) {
			t.Errorf("%q: problems %v", value, svc.Problems)
		}
	}
}

func TestAnnotations(t *testing.T) {
	type notes = map[string]string
	const names = "random, rr, lc, sh, dh, sed, nq, maglev"
	balance := func(a service.Algorithm) service.Service { return service.Service{Balance: a, Balanced: true} }
	for name, test := range map[string]struct {
		notes   notes
		want    service.Service
		problem string
	}{
		"none":            {notes{"else": "rr"}, service.Service{}, ""},
		"ours":            {notes{"fairway.net/balance": "maglev"}, balance(service.Maglev), ""},
		"white space":     {notes{"fairway.net/balance": " sh\n"}, balance(service.SourceHash), ""},
		"random, by name": {notes{"fairway.net/balance": "random"}, balance(service.Random), ""},
		"kube-router's":   {notes{"kube-router.io/service.scheduler": "lc"}, balance(service.LeastConn), ""},
		"with weights":    {notes{"kube-router.io/service.scheduler": "wrr"}, balance(service.RoundRobin), ""},
		"Cilium's":        {notes{"service.cilium.io/lb-algorithm": "maglev"}, balance(service.Maglev), ""},
		"ours first":      {notes{"fairway.net/balance": "dh", "kube-router.io/service.scheduler": "lc", "service.cilium.io/lb-algorithm": "random"}, balance(service.DestHash), ""},
		"ours unknown": {
			notes{"fairway.net/balance": "best", "kube-router.io/service.scheduler": "lc"}, service.Service{},
			`InvalidAnnotation: annotation fairway.net/balance: invalid value "best" (allowed: ` + names + `); using the node's default`,
		},
		"theirs unknown": {
			notes{"kube-router.io/service.scheduler": "lblc"}, service.Service{},
			`InvalidAnnotation: annotation kube-router.io/service.scheduler: invalid value "lblc" (allowed: ` + names + `); using the node's default`,
		},
		"weights":     {notes{"fairway.net/weights": "true"}, service.Service{Weighted: true}, ""},
		"no weights":  {notes{"fairway.net/weights": "false"}, service.Service{}, ""},
		"egress":      {notes{"fairway.net/egress": "namespace"}, service.Service{}, `InvalidAnnotation: annotation fairway.net/egress has no effect: the Service is not of type LoadBalancer`},
		"bad weights": {notes{"fairway.net/weights": "3"}, service.Service{}, `InvalidAnnotation: annotation fairway.net/weights: "3" is neither true nor false; its pods' weights do not count`},
		"close":       {notes{"fairway.net/close-connections": "unready"}, service.Service{Termination: service.TerminateUnready}, ""},
		"never close": {notes{"fairway.net/close-connections": "never"}, service.Service{Termination: service.TerminateNever}, ""},
		"bad close": {
			notes{"fairway.net/close-connections": "maybe", "fairway.net/balance": "nq"}, balance(service.NeverQueue),
			`InvalidAnnotation: annotation fairway.net/close-connections: invalid value "maybe" (allowed: gone, unready, never); using gone`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := apiService("web", "10.96.0.1")
			o.Annotations = test.notes
			o.Spec.Selector = map[string]string{"app": "web"}
			svc := ConvertService(o)
			got := service.Service{Balance: svc.Balance, Balanced: svc.Balanced, Weighted: svc.Weighted, Termination: svc.Termination}
			if got.Balance != test.want.Balance || got.Balanced != test.want.Balanced || got.Weighted != test.want.Weighted || got.Termination != test.want.Termination {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			if m := messages(svc.Problems); m != test.problem {
				t.Errorf("problems %q, want %q", m, test.problem)
			}
			if len(svc.Ports) != 1 || len(svc.ClusterIPs) != 1 {
				t.Errorf("the rest was disturbed: %+v", svc)
			}
		})
	}
	alone := apiService("alone", "10.96.0.1")
	alone.Annotations = notes{"fairway.net/weights": "true"}
	if svc := ConvertService(alone); !svc.Weighted || len(svc.Problems) > 0 {
		t.Errorf("weights without a selector, which go by the endpoints' targetRef: %v, problems %q", svc.Weighted, messages(svc.Problems))
	}
	for text, want := range map[string]*service.Egress{"pods": {Selector: map[string]string{"app": "web"}}, " namespace": {All: true}, "all": nil} {
		o := apiService("web", "10.96.0.1")
		o.Annotations, o.Spec.Type, o.Spec.Selector = notes{"fairway.net/egress": text}, corev1.ServiceTypeLoadBalancer, map[string]string{"app": "web"}
		if svc := ConvertService(o); !reflect.DeepEqual(svc.Egress, want) || len(svc.Problems) > 0 != (want == nil) {
			t.Errorf("egress %q: %+v, problems %q", text, svc.Egress, messages(svc.Problems))
		}
	}
	headless := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: notes{"fairway.net/balance": "?"}}, Spec: corev1.ServiceSpec{ClusterIP: "None"}}
	if svc := ConvertService(headless); len(svc.Problems) > 0 {
		t.Errorf("a headless Service has problems: %v", svc.Problems)
	}
}

// A tenant's text is cut before it appears in messages, events and logs.
func TestLongTexts(t *testing.T) {
	long := strings.Repeat("ö", 125<<10)
	o := apiService("web", "10.96.0.1")
	o.Annotations = map[string]string{annotationBalance: long, AnnotationWeights: long, annotationClose: " " + long}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-1", Annotations: map[string]string{annotationWeight: long}}}
	problems := ConvertService(o).Problems
	if len(problems) != 3 {
		t.Fatalf("%d problems, want 3", len(problems))
	}
	problems = append(problems, api.Problem{Message: ConvertPod(pod).Problem})
	for _, p := range problems {
		if len(p.Message) > 300 || !strings.Contains(p.Message, "öö…") {
			t.Errorf("%d bytes of message: %.400s", len(p.Message), p.Message)
		}
	}

	o = apiService("web", "10.96.0.1")
	for range 60_000 {
		o.Spec.LoadBalancerSourceRanges = append(o.Spec.LoadBalancerSourceRanges, long[:200])
	}
	svc := ConvertService(o)
	if n := len(svc.Problems); n != api.ProblemLimit+1 || svc.Problems[n-1].Reason != "FurtherProblems" {
		t.Errorf("%d problems: %v", n, svc.Problems[n-1])
	}
	if allocs := testing.AllocsPerRun(1, func() { ConvertService(o) }); allocs > 65_000*3 {
		t.Errorf("%v allocations for 60,000 ranges that are none", allocs)
	}
}
