package gateway

import "slices"

// Types of conditions, as the Gateway API writes them.
const (
	accepted         = "Accepted"
	programmed       = "Programmed"
	resolvedRefs     = "ResolvedRefs"
	conflicted       = "Conflicted"
	overlappingTLS   = "OverlappingTLSConfig"
	partiallyInvalid = "PartiallyInvalid"
	insecureFrontend = "InsecureFrontendValidationMode"
)

// Reasons of conditions. A reason that is also a type stands for the condition as it should be.
const (
	reasonListenersNotValid    = "ListenersNotValid"
	reasonListenersNotResolved = "ListenersNotResolved"
	reasonUnsupportedAddress   = "UnsupportedAddress"
	reasonInvalidParameters    = "InvalidParameters"
	reasonInvalid              = "Invalid"
	reasonPending              = "Pending"
	reasonNoResources          = "NoResources"
	reasonConfigurationChanged = "ConfigurationChanged"
	reasonInvalidClientCert    = "InvalidClientCertificateRef"
	reasonRefNotPermitted      = "RefNotPermitted"
	reasonUnsupportedProtocol  = "UnsupportedProtocol"
	reasonUnsupportedValue     = "UnsupportedValue"
	reasonProtocolConflict     = "ProtocolConflict"
	reasonHostnameConflict     = "HostnameConflict"
	reasonNoConflicts          = "NoConflicts"
	reasonOverlappingHostnames = "OverlappingHostnames"
	reasonInvalidRouteKinds    = "InvalidRouteKinds"
	reasonInvalidCertificate   = "InvalidCertificateRef"
	reasonInvalidCA            = "InvalidCACertificateRef"
	reasonInvalidCAKind        = "InvalidCACertificateKind"
	reasonNoValidCA            = "NoValidCACertificate"
	reasonNotAllowed           = "NotAllowed"
	reasonParentNotAccepted    = "ParentNotAccepted"
	reasonTooManyListeners     = "TooManyListeners"
	reasonNotAllowedByListener = "NotAllowedByListeners"
	reasonNoMatchingParent     = "NoMatchingParent"
	reasonNoMatchingHostname   = "NoMatchingListenerHostname"
	reasonIncompatibleFilters  = "IncompatibleFilters"
	reasonInvalidKind          = "InvalidKind"
	reasonBackendNotFound      = "BackendNotFound"
	reasonConflicted           = "Conflicted"
	reasonTargetNotFound       = "TargetNotFound"
)

// conditions is a list with at most one condition of each type.
type conditions []Condition

// set adds a condition or replaces the one of its type.
func (cs *conditions) set(kind string, status bool, reason, message string) {
	c := Condition{kind, status, reason, message}
	if i := slices.IndexFunc(*cs, func(c Condition) bool { return c.Type == kind }); i >= 0 {
		(*cs)[i] = c
		return
	}
	*cs = append(*cs, c)
}

// good sets a condition that is as it should be.
func (cs *conditions) good(kind string) { cs.set(kind, true, kind, "") }
