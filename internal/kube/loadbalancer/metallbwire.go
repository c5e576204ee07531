package loadbalancer

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The specs of metallb.io objects, with the names of the API's fields. A field is a pointer if its absence differs from
// its zero value.

type ipAddressPoolSpec struct {
	Addresses         []string `json:"addresses"`
	AutoAssign        *bool    `json:"autoAssign"`
	AvoidBuggyIPs     bool     `json:"avoidBuggyIPs"`
	ServiceAllocation *struct {
		Priority           int                    `json:"priority"`
		Namespaces         []string               `json:"namespaces"`
		NamespaceSelectors []metav1.LabelSelector `json:"namespaceSelectors"`
		ServiceSelectors   []metav1.LabelSelector `json:"serviceSelectors"`
	} `json:"serviceAllocation"`
}

type l2AdvertisementSpec struct {
	IPAddressPools         []string               `json:"ipAddressPools"`
	IPAddressPoolSelectors []metav1.LabelSelector `json:"ipAddressPoolSelectors"`
	NodeSelectors          []metav1.LabelSelector `json:"nodeSelectors"`
	ServiceSelectors       []metav1.LabelSelector `json:"serviceSelectors"`
	Interfaces             []string               `json:"interfaces"`
	PreferredNodeSelectors []struct {
		Weight     int                  `json:"weight"`
		Preference metav1.LabelSelector `json:"preference"`
	} `json:"preferredNodeSelectors"`
}

type bgpAdvertisementSpec struct {
	AggregationLength      *int                   `json:"aggregationLength"`
	AggregationLengthV6    *int                   `json:"aggregationLengthV6"`
	LocalPref              uint32                 `json:"localPref"`
	Communities            []string               `json:"communities"`
	IPAddressPools         []string               `json:"ipAddressPools"`
	IPAddressPoolSelectors []metav1.LabelSelector `json:"ipAddressPoolSelectors"`
	NodeSelectors          []metav1.LabelSelector `json:"nodeSelectors"`
	ServiceSelectors       []metav1.LabelSelector `json:"serviceSelectors"`
	Peers                  []string               `json:"peers"`
}

// bgpPeerSpec is the spec of v1beta2. The API server converts between v1beta1 and v1beta2 by name alone, because the
// fields of v1beta1 have equal names and meanings (docs/decisions/0016).
type bgpPeerSpec struct {
	MyASN          uint32                 `json:"myASN"`
	PeerASN        uint32                 `json:"peerASN"`
	LocalASN       uint32                 `json:"localASN"`
	DynamicASN     string                 `json:"dynamicASN"`
	PeerAddress    string                 `json:"peerAddress"`
	Interface      string                 `json:"interface"`
	SourceAddress  string                 `json:"sourceAddress"`
	PeerPort       uint16                 `json:"peerPort"`
	HoldTime       *metav1.Duration       `json:"holdTime"`
	KeepaliveTime  *metav1.Duration       `json:"keepaliveTime"`
	ConnectTime    *metav1.Duration       `json:"connectTime"`
	RouterID       string                 `json:"routerID"`
	NodeSelectors  []metav1.LabelSelector `json:"nodeSelectors"`
	Password       string                 `json:"password"`
	PasswordSecret struct {
		Name string `json:"name"`
	} `json:"passwordSecret"`
	BFDProfile             string `json:"bfdProfile"`
	EnableGracefulRestart  bool   `json:"enableGracefulRestart"`
	EBGPMultiHop           bool   `json:"ebgpMultiHop"`
	VRF                    string `json:"vrf"`
	DisableMP              bool   `json:"disableMP"`
	DualStackAddressFamily bool   `json:"dualStackAddressFamily"`
}

type bfdProfileSpec struct {
	ReceiveInterval  *int `json:"receiveInterval"`
	TransmitInterval *int `json:"transmitInterval"`
	DetectMultiplier *int `json:"detectMultiplier"`
	EchoInterval     *int `json:"echoInterval"`
	EchoMode         bool `json:"echoMode"`
	PassiveMode      bool `json:"passiveMode"`
	MinimumTTL       int  `json:"minimumTtl"`
}

type communitySpec struct {
	Communities []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"communities"`
}
