package ingress

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// A RoutePolicy is Fairway's own policy for routes (fairway.net/v1alpha1): what Gateway API does not have.
type RoutePolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              RoutePolicySpec `json:"spec"`
}

// A RoutePolicySpec has the fields that annotations of ingress-nginx become.
type RoutePolicySpec struct {
	TargetRefs  []PolicyTarget `json:"targetRefs"`
	Clients     *Clients       `json:"clients,omitempty"`
	RateLimit   *RateLimit     `json:"rateLimit,omitempty"`
	BasicAuth   *BasicAuth     `json:"basicAuth,omitempty"`
	ForwardAuth *ForwardAuth   `json:"forwardAuth,omitempty"`
	MaxBodySize string         `json:"maxBodySize,omitempty"`
	AccessLog   *bool          `json:"accessLog,omitempty"`
	Session     *Session       `json:"session,omitempty"`
	HashBy      string         `json:"hashBy,omitempty"`
	Timeouts    *Timeouts      `json:"timeouts,omitempty"`
	Retry       *Retry         `json:"retry,omitempty"`
}

// A PolicyTarget names a route of the policy's namespace.
type PolicyTarget struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
}

// Clients are the addresses that may use a route, and those that may not.
type Clients struct {
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
}

// A RateLimit bounds each client. RequestsPerSecond is a decimal number.
type RateLimit struct {
	RequestsPerSecond string   `json:"requestsPerSecond,omitempty"`
	Burst             int      `json:"burst,omitempty"`
	Connections       int      `json:"connections,omitempty"`
	Exempt            []string `json:"exempt,omitempty"`
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
	MaxAge     string `json:"maxAge,omitempty"`
	Path       string `json:"path,omitempty"`
	SameSite   string `json:"sameSite,omitempty"`
	Secure     bool   `json:"secure,omitempty"`
	Balanced   bool   `json:"balanced,omitempty"`
}

// Timeouts bound the steps of a request to a backend.
type Timeouts struct {
	Connect string `json:"connect,omitempty"`
	Read    string `json:"read,omitempty"`
	Send    string `json:"send,omitempty"`
}

// A Retry is when a request is sent again to another endpoint.
type Retry struct {
	Attempts int   `json:"attempts,omitempty"`
	Codes    []int `json:"codes,omitempty"`
	Unsafe   bool  `json:"unsafe,omitempty"`
}
