package kube

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fairway-net/fairway/internal/api"
)

// TestUnknownAnnotations: a key that looks as ours and is not has an event that says which is
// meant; keys of others have none.
func TestUnknownAnnotations(t *testing.T) {
	for key, want := range map[string]string{
		"fairway.net/blance": "annotation fairway.net/blance has no effect on a Service [did you mean fairway.net/balance?]",
		"fairway.net/weight": "annotation fairway.net/weight has no effect on a Service: it belongs on a Pod; on a Service there is fairway.net/weights",
		"fairway.net/xyzzyx": "annotation fairway.net/xyzzyx has no effect on a Service",
		annotationBalance:    "", "fairway.network/balance": "", "example.com/blance": "",
	} {
		svc := ConvertService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", Annotations: map[string]string{key: "rr"}}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9", ClusterIPs: []string{"10.96.0.9"}, Ports: []corev1.ServicePort{{Port: 80}}}})
		got := ""
		for _, p := range svc.Problems {
			if p.Reason == ReasonUnknownAnnotation {
				got += p.Message
			}
		}
		if got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}

// TestMisspeltOfPods: what a user takes for an annotation of a pod.
func TestMisspeltOfPods(t *testing.T) {
	for key, want := range map[string]string{
		"fairway.net/egress":              "annotation fairway.net/egress has no effect on a Pod: it belongs on a Service",
		"kubernetes.io/ingres-bandwidth":  "annotation kubernetes.io/ingres-bandwidth limits no bandwidth [did you mean kubernetes.io/ingress-bandwidth?]",
		"kubernetes.io/egress-bandwith":   "annotation kubernetes.io/egress-bandwith limits no bandwidth [did you mean kubernetes.io/egress-bandwidth?]",
		"kubernetes.io/ingress-bandwidth": "", "kubernetes.io/egress-bandwidth": "", "kubernetes.io/ingress.class": "", "example.com/egress-bandwith": "", "kubernetes.io/husbandry": "",
	} {
		var got []string
		reporter := podReporter{report: func(_ api.Name, _ string, p api.Problem) { got = append(got, p.Message) }}
		reporter.check(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", Annotations: map[string]string{key: "10M"}}})
		if strings.Join(got, "; ") != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}

// TestUnknownAnnotationsOfPods: the controller, which alone reads pods, names misspelt keys of one pod
// of each template, and says nothing of keys that are right or of others.
func TestUnknownAnnotationsOfPods(t *testing.T) {
	pod := func(name, owner string, annotations ...string) *corev1.Pod {
		o := apiPod(name, "web", "10.0.0.1", "3")
		o.UID = types.UID("uid-" + name)
		for _, key := range annotations {
			o.Annotations[key] = "3"
		}
		if yes := true; owner != "" {
			o.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: owner, UID: types.UID(owner), Controller: &yes}}
		}
		return o
	}
	client := fake.NewClientset(pod("a", "set", "fairway.net/wieght"), pod("b", "set", "fairway.net/wieght"),
		pod("c", "", "fairway.net/weights"), pod("d", "", "example.com/wieght", "fairway.net/settings-hash"), apiPod("e", "web", "10.0.0.5", ""))
	w := startWeigher(t, client)
	ctx := t.Context()
	watched(t, client, 3)
	later := pod("c", "", "fairway.net/weights")
	later.Labels["more"] = "of it" // seen again, and not said again
	must[*corev1.Pod](t)(client.CoreV1().Pods("default").Update(ctx, later, metav1.UpdateOptions{}))
	must[*corev1.Pod](t)(client.CoreV1().Pods("default").Create(ctx, pod("f", "other", "fairway.net/wieght"), metav1.CreateOptions{}))
	until(t, "three of them", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.ofPods) >= 3 })
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.Sort(w.ofPods)
	misspelt := "UnknownAnnotation: annotation fairway.net/wieght has no effect on a Pod [did you mean fairway.net/weight?]"
	of := strings.Split(w.ofPods[0], " ")[0] // of a and b, whichever came first
	want := []string{
		of + " uid-" + of[len(of)-1:] + " " + misspelt,
		"default/c uid-c UnknownAnnotation: annotation fairway.net/weights has no effect on a Pod: it belongs on a Service; on a Pod there is fairway.net/weight",
		"default/f uid-f " + misspelt,
	}
	if !slices.Equal(w.ofPods, want) {
		t.Errorf("said\n%s\nwant\n%s", strings.Join(w.ofPods, "\n"), strings.Join(want, "\n"))
	}
}

// TestOwnAnnotationsAreComplete: every key with our prefix in the code is known, or on another
// object.
func TestOwnAnnotationsAreComplete(t *testing.T) {
	key := regexp.MustCompile(`"fairway\.net/[a-z-]+"`)
	notOnServices := append([]string{
		"fairway.net/kube-proxy", // a label of nodes
		"fairway.net/ingress",    // the controller's name in IngressClasses
		"fairway.net/gateway",    // the controller's name in GatewayClasses; an annotation of a Gateway's own Services
		AnnotationWireGuardKey,   // on nodes
		"fairway.net/no-such",    // a hostile tenant's in test/tenants, of which an event says that it has no effect
	}, slices.Concat(podAnnotations, otherAnnotations)...)
	err := filepath.WalkDir("../..", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2 || d.Name() == "bin") {
			if d.IsDir() && err == nil {
				return filepath.SkipDir
			}
			return err
		}
		if d.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		for _, k := range key.FindAllString(string(text), -1) {
			if k = strings.Trim(k, `"`); !slices.Contains(ownAnnotations, k) && !slices.Contains(notOnServices, k) {
				t.Errorf("%s: %s is neither in ownAnnotations nor on another object", p, k)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
