package gateway

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	oneline "github.com/fairway-net/fairway/internal/text"
)

// routePolicies is the resource of RoutePolicies.
var routePolicies = schema.GroupVersionResource{Group: gateway.PolicyGroup, Version: "v1alpha1", Resource: "routepolicies"}

// RoutePolicyType is the type of a RoutePolicy.
var RoutePolicyType = metav1.TypeMeta{APIVersion: routePolicies.GroupVersion().String(), Kind: string(gateway.KindRoutePolicy)}

// A RoutePolicy gives routes of its namespace what Gateway API does not have. The schema is in
// deploy/components/gateway/routepolicies.yaml. Its status is not part of this type.
type RoutePolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              RoutePolicySpec `json:"spec"`
}

// A RoutePolicySpec says what routes get. The oldest policy of a target counts.
type RoutePolicySpec struct {
	// TargetRefs are routes of the policy's namespace. Without any, only filters of type ExtensionRef use the policy.
	TargetRefs  []PolicyTarget `json:"targetRefs,omitempty"`
	Clients     *Clients       `json:"clients,omitempty"`
	RateLimit   *RateLimit     `json:"rateLimit,omitempty"`
	BasicAuth   *BasicAuth     `json:"basicAuth,omitempty"`
	ForwardAuth *ForwardAuth   `json:"forwardAuth,omitempty"`
	MaxBodySize string         `json:"maxBodySize,omitempty"` // a quantity; "0": no bound
	AccessLog   *bool          `json:"accessLog,omitempty"`
	Session     *Session       `json:"session,omitempty"`
	HashBy      string         `json:"hashBy,omitempty"` // a variable of nginx
	Timeouts    *Timeouts      `json:"timeouts,omitempty"`
	Retry       *Retry         `json:"retry,omitempty"`
}

// A PolicyTarget names a route, or one of its rules.
type PolicyTarget struct {
	Group       string `json:"group"`
	Kind        string `json:"kind"` // HTTPRoute, GRPCRoute
	Name        string `json:"name"`
	SectionName string `json:"sectionName,omitempty"` // a rule's name
}

// Clients are addresses and prefixes that may use a route, and those that may not.
type Clients struct {
	Allow []string `json:"allow,omitempty"` // empty: all
	Deny  []string `json:"deny,omitempty"`
}

// A RateLimit bounds each client.
type RateLimit struct {
	RequestsPerSecond string   `json:"requestsPerSecond,omitempty"` // a decimal number; empty: no bound
	Burst             int      `json:"burst,omitempty"`
	Connections       int      `json:"connections,omitempty"` // 0: no bound
	Exempt            []string `json:"exempt,omitempty"`      // clients
	Code              int      `json:"code,omitempty"`        // 0: 503
}

// BasicAuth names a Secret with the key auth, in htpasswd's form.
type BasicAuth struct {
	SecretRef Named  `json:"secretRef"`
	Realm     string `json:"realm,omitempty"`
}

// Named is an object of the policy's namespace.
type Named struct {
	Name string `json:"name"`
}

// ForwardAuth asks another server about each request.
type ForwardAuth struct {
	URL             string   `json:"url"`
	Method          string   `json:"method,omitempty"`
	SignInURL       string   `json:"signInURL,omitempty"`
	ResponseHeaders []string `json:"responseHeaders,omitempty"`
}

// A Session keeps a client at its endpoint by a cookie.
type Session struct {
	CookieName string `json:"cookieName,omitempty"`
	MaxAge     string `json:"maxAge,omitempty"` // empty: until the browser ends
	Path       string `json:"path,omitempty"`
	SameSite   string `json:"sameSite,omitempty"`
	Secure     bool   `json:"secure,omitempty"`
	Balanced   bool   `json:"balanced,omitempty"` // new endpoints get clients of the others
}

// Timeouts bound the steps of a request to a backend. They are durations of Gateway API; empty: the default.
type Timeouts struct {
	Connect string `json:"connect,omitempty"`
	Read    string `json:"read,omitempty"`
	Send    string `json:"send,omitempty"`
}

// A Retry says when a request is sent again to another endpoint.
type Retry struct {
	Attempts int   `json:"attempts,omitempty"` // 0: 1
	Codes    []int `json:"codes,omitempty"`
	Unsafe   bool  `json:"unsafe,omitempty"` // also methods that are not idempotent
}

// readRoutePolicy reads a RoutePolicy. An unreadable policy still has its targets, because their rules must not be served
// without it.
func readRoutePolicy(o *unstructured.Unstructured) (gateway.Object, error) {
	var p RoutePolicy
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p)
	if err == nil {
		p.ObjectMeta.Namespace, p.ObjectMeta.Name = o.GetNamespace(), o.GetName()
		return convertRoutePolicy(&p), nil
	}
	var targets struct {
		Spec struct {
			TargetRefs []PolicyTarget `json:"targetRefs"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &targets); err != nil {
		return nil, oneline.OneLine(err)
	}
	return &gateway.RoutePolicy{
		Meta: metaOf(o), Targets: policyTargets(targets.Spec.TargetRefs),
		Invalid: fmt.Sprintf("it cannot be read: %v [is its CustomResourceDefinition that of this version?]", oneline.OneLine(err)),
	}, nil
}

func policyTargets(all []PolicyTarget) (out []gateway.ObjectRef) {
	for _, t := range all {
		out = append(out, gateway.ObjectRef{GroupKind: groupKind(t.Group, t.Kind), Name: t.Name, Section: t.SectionName})
	}
	return out
}

// convertRoutePolicy converts a RoutePolicy. The compiler reads prefixes, rates and addresses of servers.
func convertRoutePolicy(o *RoutePolicy) gateway.Object {
	spec := &o.Spec
	p := &gateway.RoutePolicy{Meta: metaOf(o), Targets: policyTargets(spec.TargetRefs), AccessLog: spec.AccessLog, HashBy: spec.HashBy}
	var bad faults
	if c := spec.Clients; c != nil {
		p.Allow, p.Deny = c.Allow, c.Deny
	}
	if r := spec.RateLimit; r != nil {
		p.RateLimit = &gateway.RateLimitSpec{RequestsPerSecond: r.RequestsPerSecond, Burst: r.Burst, Connections: r.Connections, Exempt: r.Exempt, Code: r.Code}
	}
	if b := spec.BasicAuth; b != nil {
		p.BasicAuth = &gateway.BasicAuthSpec{Secret: b.SecretRef.Name, Realm: b.Realm}
	}
	if a := spec.ForwardAuth; a != nil {
		p.ForwardAuth = &gateway.ForwardAuth{URL: a.URL, Method: a.Method, SignIn: a.SignInURL, Headers: a.ResponseHeaders}
	}
	p.MaxBody = bad.size("maxBodySize", spec.MaxBodySize)
	if s := spec.Session; s != nil {
		p.Session = &gateway.Session{
			Name: s.CookieName, Lifetime: bad.duration("session.maxAge", s.MaxAge), Path: s.Path, SameSite: s.SameSite, Secure: s.Secure, Balanced: s.Balanced,
		}
	}
	if t := spec.Timeouts; t != nil {
		p.ConnectTimeout, p.ReadTimeout, p.SendTimeout = bad.duration("timeouts.connect", t.Connect), bad.duration("timeouts.read", t.Read), bad.duration("timeouts.send", t.Send)
	}
	if r := spec.Retry; r != nil {
		p.Retry = &gateway.Retry{Attempts: r.Attempts, Codes: r.Codes, Unsafe: r.Unsafe}
	}
	p.Invalid = string(bad)
	return p
}

// faults is the first fault of an object; empty: none.
type faults string

func (f *faults) add(text string) { *f = cmp.Or(*f, faults(text)) }

// duration reads a duration of Gateway API. An absent one is 0.
func (f *faults) duration(field, text string) time.Duration {
	if text == "" {
		return 0
	}
	d, ok := duration((*gatewayv1.Duration)(&text))
	if !ok {
		f.add(fmt.Sprintf("%s %q is no duration [write 30s]", field, api.Cut(text, 100)))
	}
	return d
}

// size reads a number of bytes; nil: it is absent.
func (f *faults) size(field, text string) *int64 {
	if text == "" {
		return nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 {
		f.add(fmt.Sprintf("%s %q is no number of bytes [write 8Mi]", field, api.Cut(text, 100)))
		return nil
	}
	return new(q.Value())
}
