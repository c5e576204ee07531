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
)

// TestUnknownAnnotations: a key that looks as ours and is not has an event that says which is
// meant; keys of others have none.
func TestUnknownAnnotations(t *testing.T) {
	for key, want := range map[string]string{
		"fairway.net/blance": "annotation fairway.net/blance has no effect on a Service [did you mean fairway.net/balance?]",
		"fairway.net/weight": "annotation fairway.net/weight has no effect on a Service: it belongs on another object; on a Service there is fairway.net/weights",
		"fairway.net/xyzzyx": "annotation fairway.net/xyzzyx has no effect on a Service",
		annotationBalance:    "", "fairway.network/balance": "", "example.com/blance": "",
	} {
		svc := ConvertService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", Annotations: map[string]string{key: "rr"}}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9", ClusterIPs: []string{"10.96.0.9"}, Ports: []corev1.ServicePort{{Port: 80}}}})
		got := ""
		for _, p := range svc.Problems {
			if p.Reason == reasonUnknownAnnotation {
				got += p.Message
			}
		}
		if got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}

// TestOwnAnnotationsAreComplete: every key with our prefix in the code is known, or on another
// object.
func TestOwnAnnotationsAreComplete(t *testing.T) {
	key := regexp.MustCompile(`"fairway\.net/[a-z-]+"`)
	notOnServices := append([]string{
		"fairway.net/settings-hash", // on the agents' pods
		"fairway.net/kube-proxy",    // a label of nodes
		AnnotationWireGuardKey,      // on nodes
	}, otherAnnotations...)
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
