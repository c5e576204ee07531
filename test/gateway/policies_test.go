package gateway

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/yaml"
)

// policyObjects is embedded, because the test runs in another directory.
//
//go:embed testdata/policies.yaml
var policyObjects string

// rulePolicies are the specs of RoutePolicies, by the rule of testdata/policies.yaml.
var rulePolicies = map[string]string{
	"denied":   `clients: {deny: [0.0.0.0/0, "::/0"]}`,
	"others":   `clients: {allow: [192.0.2.0/24]}`,
	"rate":     `rateLimit: {requestsPerSecond: "0.01", burst: 1, code: 429}`,
	"basic":    `basicAuth: {secretRef: {name: users}, realm: shop}`,
	"allowed":  `forwardAuth: {url: "http://echo.policies.svc.cluster.local/status/200"}`,
	"refused":  `forwardAuth: {url: "http://echo.policies.svc.cluster.local/status/403"}`,
	"sign-in":  `forwardAuth: {url: "http://echo.policies.svc.cluster.local/status/401", signInURL: "https://login.example/"}`,
	"body":     `maxBodySize: "10"`,
	"session":  `session: {cookieName: route, maxAge: 1h}`,
	"hash":     `hashBy: $arg_user`,
	"late":     `timeouts: {read: 500ms}`,
	"retry":    `retry: {attempts: 2, codes: [503]}`,
	"loopback": `forwardAuth: {url: "http://127.0.0.1:9121/"}`,
}

// A policyBench is a Gateway with the rules of testdata/policies.yaml.
type policyBench struct {
	*testing.T
	client.Client
	base string // http://ADDRESS
}

// newPolicyBench makes a bench in the cluster of --kubeconfig.
func newPolicyBench(t *testing.T) *policyBench {
	t.Helper()
	if kubeconfig() == "" {
		t.Skip("--kubeconfig names no cluster [run make test-gateway]")
	}
	cfg, err := config.GetConfig()
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS, cfg.Burst = 1000, 1000 // what the API server itself limits is enough
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := &policyBench{T: t, Client: c}
	b.setUp()
	b.until("the Gateway serves", func() string { code, _, _ := b.ask("GET", "/open", nil); return fmt.Sprint(code) }, "200")
	return b
}

// TestPolicies: each field of a RoutePolicy takes effect in a cluster, and the status says which policies count.
func TestPolicies(t *testing.T) {
	b := newPolicyBench(t)
	for rule := range rulePolicies {
		want := "Accepted"
		if rule == "loopback" {
			want = "Invalid"
		}
		b.until("policy "+rule, func() string { return b.reason(rule) }, want)
	}
	t.Run("access", func(t *testing.T) { b.with(t).access() })
	t.Run("limits", func(t *testing.T) { b.with(t).limits() })
	t.Run("endpoints", func(t *testing.T) { b.with(t).endpoints() })
	t.Run("conflict", func(t *testing.T) { b.with(t).conflict() })
}

func (b *policyBench) with(t *testing.T) *policyBench { return &policyBench{t, b.Client, b.base} }

// setUp makes the objects, and waits for the Gateway's address.
func (b *policyBench) setUp() {
	b.Helper()
	for doc := range strings.SplitSeq(policyObjects, "\n---\n") {
		b.apply(doc)
	}
	for rule, spec := range rulePolicies {
		b.apply(policyOf(rule, rule, spec))
	}
	b.Cleanup(func() {
		ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "policies"}}}
		ctx := context.WithoutCancel(b.Context())
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
			if err := b.Delete(ctx, ns); apierrors.IsNotFound(err) {
				return
			}
		}
		b.Error("the namespace stays")
	})
	b.until("the Gateway has an address", func() string {
		o := b.get("gateway.networking.k8s.io/v1", "Gateway", "front")
		all, _, _ := unstructured.NestedSlice(o.Object, "status", "addresses")
		for _, a := range all {
			host, _ := a.(map[string]any)["value"].(string)
			if strings.Contains(host, ":") {
				host = "[" + host + "]"
			}
			b.base = "http://" + host
			return "an address"
		}
		return "none"
	}, "an address")
}

// policyOf returns a RoutePolicy for a rule.
func policyOf(name, rule, spec string) string {
	return fmt.Sprintf("{apiVersion: fairway.net/v1alpha1, kind: RoutePolicy, metadata: {name: %s, namespace: policies}, spec: {targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: web, sectionName: %s}], %s}}", name, rule, spec)
}

func (b *policyBench) apply(doc string) {
	b.Helper()
	o := new(unstructured.Unstructured)
	if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
		b.Fatalf("%s: %v", doc, err)
	}
	if err := b.Apply(b.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("test"), client.ForceOwnership); err != nil {
		b.Fatalf("%s: %v", o.GetName(), err)
	}
}

func (b *policyBench) get(version, kind, name string) *unstructured.Unstructured {
	b.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": version, "kind": kind}}
	if err := b.Get(b.Context(), client.ObjectKey{Namespace: "policies", Name: name}, o); err != nil {
		b.Fatal(err)
	}
	return o
}

// reason returns the reason of the condition Accepted of a policy.
func (b *policyBench) reason(policy string) string {
	b.Helper()
	var status struct {
		Status struct {
			Ancestors []struct {
				AncestorRef struct{ Kind, Name string }
				Conditions  []metav1.Condition
			}
		}
	}
	text, err := json.Marshal(b.get("fairway.net/v1alpha1", "RoutePolicy", policy).Object)
	if err == nil {
		err = json.Unmarshal(text, &status)
	}
	if err != nil {
		b.Fatal(err)
	}
	for _, a := range status.Status.Ancestors {
		for _, c := range a.Conditions {
			if a.AncestorRef.Kind == "Gateway" && a.AncestorRef.Name == "front" && c.Type == "Accepted" {
				return c.Reason
			}
		}
	}
	return "none"
}

// until waits until a text is the wanted one.
func (b *policyBench) until(what string, is func() string, want string) {
	b.Helper()
	var got string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if got = is(); got == want {
			return
		}
	}
	b.Fatalf("%s: %s, want %s", what, got, want)
}

// ask sends a request on a connection of its own, and returns the status, the pod that answered, and the headers.
func (b *policyBench) ask(method, path string, body io.Reader, headers ...string) (code int, pod string, h http.Header) {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), method, b.base+path, body)
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	req.Close = true
	resp, err := (&http.Transport{}).RoundTrip(req)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer resp.Body.Close()
	var echo struct{ Pod string }
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode == http.StatusOK {
		err = json.Unmarshal(text, &echo)
	}
	if err != nil {
		b.Errorf("%s %s: %s: %v", method, path, text, err)
	}
	return resp.StatusCode, echo.Pod, resp.Header
}

// want sends a request without a body, and checks the status.
func (b *policyBench) want(want int, path string, headers ...string) http.Header {
	b.Helper()
	code, pod, h := b.ask("GET", path, nil, headers...)
	if code != want {
		b.Errorf("%s %v: status %d %s, want %d", path, headers, code, pod, want)
	}
	return h
}

// access: lists of clients, passwords, another server's decision.
func (b *policyBench) access() {
	b.want(403, "/denied")
	b.want(403, "/others")
	if h := b.want(401, "/basic"); !strings.Contains(h.Get("Www-Authenticate"), `realm="shop"`) {
		b.Errorf("%v", h)
	}
	joe := func(password string) string {
		r := &http.Request{Header: http.Header{}}
		r.SetBasicAuth("joe", password)
		return r.Header.Get("Authorization")
	}
	b.want(401, "/basic", "Authorization", joe("wrong"))
	b.want(200, "/basic", "Authorization", joe("test"))
	b.apply(`{apiVersion: v1, kind: Secret, metadata: {name: users, namespace: policies}, stringData: {auth: "joe:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g="}}`) // password
	b.until("the new password", func() string {
		code, _, _ := b.ask("GET", "/basic", nil, "Authorization", joe("password"))
		return fmt.Sprint(code)
	}, "200")
	b.want(200, "/allowed")
	b.want(403, "/refused")
	if h := b.want(302, "/sign-in"); !strings.HasPrefix(h.Get("Location"), "https://login.example/") {
		b.Errorf("%v", h)
	}
	b.want(500, "/loopback")
}

// limits: rates, bodies, timeouts.
func (b *policyBench) limits() {
	refused := 0
	for range 10 { // a burst of one more, in each of two gateways
		if code, _, _ := b.ask("GET", "/rate", nil); code == 429 {
			refused++
		}
	}
	if refused < 6 || refused > 8 {
		b.Errorf("%d of 10 requests are refused", refused)
	}
	for body, want := range map[string]int{"0123456789": 200, "01234567890": 413} {
		if code, _, _ := b.ask("POST", "/body", strings.NewReader(body)); code != want {
			b.Errorf("a body of %d bytes: %d", len(body), code)
		}
	}
	b.want(200, "/late?delay=10ms")
	b.want(504, "/late?delay=5s")
}

// endpoints: sessions, hashes, retries.
func (b *policyBench) endpoints() {
	_, first, h := b.ask("GET", "/session", nil)
	cookie, _, _ := strings.Cut(h.Get("Set-Cookie"), ";")
	if !strings.HasPrefix(cookie, "route=") || !strings.Contains(h.Get("Set-Cookie"), "Max-Age=3600") {
		b.Fatalf("%v", h)
	}
	for range 10 {
		if code, pod, _ := b.ask("GET", "/session", nil, "Cookie", cookie); pod != first {
			b.Errorf("status %d: the session moves from %s to %s", code, first, pod)
		}
	}
	seen := map[string]bool{}
	for user := range 20 {
		path := fmt.Sprintf("/hash?user=%d", user)
		_, one, _ := b.ask("GET", path, nil)
		if _, two, _ := b.ask("GET", path, nil); two != one {
			b.Errorf("%s: %s, then %s", path, one, two)
		}
		seen[one] = true
	}
	if len(seen) != 2 {
		b.Errorf("the hash chooses of %v", seen)
	}
	// echo-basic answers 503 in each pod until it has seen the uuid often enough.
	b.want(200, "/retry/a?uuid="+fmt.Sprint(time.Now().UnixNano())+"&responseCode=503&succeedAfter=1")
	b.want(502, "/retry/a?uuid="+fmt.Sprint(time.Now().UnixNano())+"&responseCode=502&succeedAfter=1")
}

// conflict: the older of two policies of a rule counts, and the younger one after it is gone.
func (b *policyBench) conflict() {
	created := b.get("fairway.net/v1alpha1", "RoutePolicy", "denied").GetCreationTimestamp()
	for time.Since(created.Time) < 2*time.Second { // ages are whole seconds
		time.Sleep(100 * time.Millisecond)
	}
	b.apply(policyOf("younger", "denied", `maxBodySize: "10"`))
	b.until("the younger policy", func() string { return b.reason("younger") }, "Conflicted")
	b.want(403, "/denied")
	if err := b.Delete(b.Context(), b.get("fairway.net/v1alpha1", "RoutePolicy", "denied")); err != nil {
		b.Fatal(err)
	}
	b.until("the younger policy", func() string { return b.reason("younger") }, "Accepted")
	b.until("its rule", func() string { code, _, _ := b.ask("GET", "/denied", nil); return fmt.Sprint(code) }, "200")
}
