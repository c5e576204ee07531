package gateway

// Group is the API group of the Gateway API.
const Group = "gateway.networking.k8s.io"

func (m *Meta) meta() *Meta { return m }

// Each kind says its own name. L4Route has three kinds.

func (o *Class) Ref() Ref            { return Ref{KindGatewayClass, o.Name} }
func (o *Gateway) Ref() Ref          { return Ref{KindGateway, o.Name} }
func (o *ListenerSet) Ref() Ref      { return Ref{KindListenerSet, o.Name} }
func (o *HTTPRoute) Ref() Ref        { return Ref{KindHTTPRoute, o.Name} }
func (o *GRPCRoute) Ref() Ref        { return Ref{KindGRPCRoute, o.Name} }
func (o *L4Route) Ref() Ref          { return Ref{o.Kind, o.Name} }
func (o *Grant) Ref() Ref            { return Ref{KindReferenceGrant, o.Name} }
func (o *BackendTLSPolicy) Ref() Ref { return Ref{KindBackendTLSPolicy, o.Name} }
func (o *IngressClass) Ref() Ref     { return Ref{KindIngressClass, o.Name} }
func (o *Ingress) Ref() Ref          { return Ref{KindIngress, o.Name} }
func (o *Namespace) Ref() Ref        { return Ref{KindNamespace, o.Name} }
func (o *Service) Ref() Ref          { return Ref{KindService, o.Name} }
func (o *Secret) Ref() Ref           { return Ref{KindSecret, o.Name} }
func (o *ConfigMap) Ref() Ref        { return Ref{KindConfigMap, o.Name} }
